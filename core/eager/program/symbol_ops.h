// SPDX-License-Identifier: Apache-2.0
//
// The nodes of a program that are not operators: Python's arithmetic on sizes (`_operator.mul`, `torch.sym_max`,
// `math.trunc`). They follow Python's rules: // and % round towards minus infinity, / of integers is a float, integers
// do not wrap.
#pragma once

#include <ATen/core/ivalue.h>

#include <span>
#include <string_view>

namespace keirin {

// Throws c10::Error on overflow, a zero divisor or an operand that is not a number.
using SymbolOp = c10::IValue (*)(std::span<const c10::IValue> operands);

// Null if the target names no such operation.
SymbolOp find_symbol_op(std::string_view target);

}  // namespace keirin
