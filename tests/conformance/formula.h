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
  double room = 0;  // a float result's: what the formula's own rounding may do in the compute type; infinite: beyond its range, where
                    // eager's answer is right too
};

// The row's function on one element. Floats as d, integers and bools as i; `in` is the operands' dtype, `out` the result's.
Number apply_row(OpCode row, DType in, DType out, const Number* x);

// Whether `got`, stored as `dtype`, is the formula's `want` rounded once; rows with a tolerance may lie off by that many ulps of
// the compute dtype or by the formula's own room.
bool within_row(OpCode row, DType dtype, const Number& want, double got);

}  // namespace keirin::conformance
