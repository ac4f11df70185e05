// SPDX-License-Identifier: Apache-2.0
//
// Typed memory of the tests, read and written as double: every value the tests use is exact in one (integers below 2^53).
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "plugins/codegen/kernel/rows.h"

namespace keirin::codegen::test {

double load_element(const void* base, int64_t index, uint8_t dtype);
void store_element(void* base, int64_t index, uint8_t dtype, double value);
// What storing and loading again gives.
double through_dtype(double value, uint8_t dtype);

}  // namespace keirin::codegen::test
