// SPDX-License-Identifier: Apache-2.0
//
// Elements of tensors in host memory, one by one, whatever the dtype and the strides: what generator and judge read and write.
// Not for speed. Inside core/tune only.
#pragma once

#include <cstdint>
#include <functional>

#include "core/base/dtype.h"
#include "core/base/tensor.h"

namespace keirin {

// Writes a value: rounded to nearest even for floats, converted as C++ does for integers, != 0 for bool.
void store_element(DType dtype, void* at, double value);
void store_integer(DType dtype, void* at, int64_t value);

// Reads one, exactly; complex and 8-bit floats read as their raw bits' number.
double load_element(DType dtype, const void* at);

// Units of the last place of the dtype at that magnitude: distance to the next larger value.
double ulp_at(DType dtype, double magnitude);

// fn(index, address) for each element in row-major order. The tensor lies in host memory.
void each_element(const Tensor& tensor, const std::function<void(int64_t, void*)>& fn);

int64_t num_elements(const Tensor& tensor);

// Largest integer that the dtype holds exactly, for generators.
int64_t largest_integer(DType dtype);

}  // namespace keirin
