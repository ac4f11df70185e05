// SPDX-License-Identifier: Apache-2.0
//
// Elements: what inputs are filled with, and how a number is stored in a dtype in one rounding. Independent of the code under
// test and of the generators in core/tune.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "tests/conformance/case.h"

namespace keirin::conformance {

// The nearest value of the dtype, ties to even, from double in one rounding.
double round_once(DType dtype, double v);

// One element in memory, as double or, for integers and bools, as int64.
void put_double(DType dtype, double v, void* at);  // v is rounded once
void put_integer(DType dtype, int64_t v, void* at);  // wraps; bool: != 0
double get_double(DType dtype, const void* at);      // exact but for i64 past 2^53
int64_t get_integer(DType dtype, const void* at);

// The values of an input, element by element in memory form. Deterministic.
std::vector<uint8_t> fill(const Type& type, const Feed& feed, bool edges, uint64_t seed);

}  // namespace keirin::conformance
