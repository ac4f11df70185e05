// SPDX-License-Identifier: Apache-2.0
//
// The primitives of the scalar DAG that are an instruction or a handful, and the conversions between storage and compute
// types, as LLVM IR over scalars or vectors. Nothing here knows loops or memory; elementary functions are vector_math's.
#pragma once

#include "llvm/IR/IRBuilder.h"
#include "plugins/codegen/kernel/expr.h"
#include "plugins/codegen/kernel/loops.h"

namespace keirin::codegen::native {

// The type of `lanes` values: the scalar type itself for one lane.
llvm::Type* with_lanes(llvm::Type* scalar, int lanes);
llvm::Type* kind_type(llvm::LLVMContext& context, Kind kind);
// The type in memory; bf16 is carried as i16, bool as i8.
llvm::Type* storage_type(llvm::LLVMContext& context, uint8_t dtype);
int64_t storage_bytes(uint8_t dtype);
Kind kind_of_dtype(uint8_t dtype);

llvm::Value* splat(llvm::IRBuilder<>& b, llvm::Value* scalar, int lanes);
llvm::Value* literal(llvm::IRBuilder<>& b, Kind kind, uint64_t bits, int lanes);

llvm::Value* from_storage(llvm::IRBuilder<>& b, llvm::Value* stored, uint8_t dtype, Kind kind);
llvm::Value* to_storage(llvm::IRBuilder<>& b, llvm::Value* value, Kind kind, uint8_t dtype);
llvm::Value* convert(llvm::IRBuilder<>& b, llvm::Value* value, Kind from, Kind to);

// minimum and maximum of the table: NaN propagates from either side.
llvm::Value* minimum(llvm::IRBuilder<>& b, llvm::Value* x, llvm::Value* y);
llvm::Value* maximum(llvm::IRBuilder<>& b, llvm::Value* x, llvm::Value* y);

// One node with its operands' values; `operand_kind` is the kind of operand a.
llvm::Value* emit_primitive(llvm::IRBuilder<>& b, const Node& node, Kind operand_kind, llvm::Value* x, llvm::Value* y,
                            llvm::Value* z);

// The start of a reduction and its step, for kSum .. kAll.
llvm::Value* monoid_start(llvm::IRBuilder<>& b, Monoid monoid, Kind kind, int lanes);
llvm::Value* monoid_step(llvm::IRBuilder<>& b, Monoid monoid, llvm::Value* acc, llvm::Value* x);

}  // namespace keirin::codegen::native
