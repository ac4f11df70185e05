// SPDX-License-Identifier: Apache-2.0
//
// The law of the SCALAR rows: the function of abi/scalar.h in double or wrapping integers, and how far a result may lie from it.
#pragma once

#include <vector>

#include "tests/conformance/case.h"

namespace keirin::conformance {

// One number of either class, as the formula sees it.
struct Number {
  double d = 0;
  int64_t i = 0;
};

// The row's function on one element. Floats as d, integers and bools as i; `in` is the operands' dtype, `out` the result's.
Number apply_row(OpCode row, DType in, DType out, const Number* x);

// Whether `got`, stored as `dtype`, is the formula's `exact` rounded once, give or take the row's ulps of the compute dtype.
bool within_row(OpCode row, DType dtype, double exact, double got);

}  // namespace keirin::conformance
