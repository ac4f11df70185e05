// SPDX-License-Identifier: Apache-2.0
//
// The oracle of the kernel tests: walks a loop kernel point by point in double and i64, with storage rounding at loads and
// stores. Plain on purpose; it shares nothing with the emitter but the definition of a kernel.
#pragma once

#include <cstdint>
#include <vector>

#include "plugins/codegen/kernel/loops.h"

namespace keirin::test {

// One element of storage as a number, and back (rounded to nearest even).
struct Number {
  double real = 0;
  int64_t whole = 0;
};
Number read_element(const void* base, int64_t index, uint8_t dtype);
void write_element(void* base, int64_t index, uint8_t dtype, double real, int64_t whole);
int64_t element_bytes(uint8_t dtype);
bool is_real(uint8_t dtype);

// `pointers`: one per buffer. Returns false where an indirect index lay outside.
bool interpret(const codegen::Kernel& kernel, void* const* pointers, const int32_t* row_pointers = nullptr,
               const int32_t* edge_order = nullptr);

}  // namespace keirin::test
