// SPDX-License-Identifier: Apache-2.0
//
// Elementary functions as LLVM IR over floats or vectors of floats, branch-free but for huge arguments of sin and cos. f32 is
// ours: at most 2 ulp, with NaN, infinities and denormals as the formula sends them; no math library, so the same on every CPU.
// f64, and pow, go element by element to libm through the functions that lane_functions() names.
#pragma once

#include <utility>
#include <vector>

#include "llvm/IR/IRBuilder.h"
#include "plugins/codegen/kernel/expr.h"

namespace keirin::codegen::native {

// Whether this file makes the primitive; arithmetic and comparisons are scalar_ops' business.
bool is_elementary(Prim prim);

// The value of prim(a) or prim(a, b). The operands are f32 or f64, scalar or vector.
llvm::Value* emit_elementary(llvm::IRBuilder<>& b, Prim prim, llvm::Value* a, llvm::Value* second);

// Symbols that generated code may call, with their addresses: void(T* values, [const T* second,] int32_t count).
std::vector<std::pair<const char*, void*>> lane_functions();

}  // namespace keirin::codegen::native
