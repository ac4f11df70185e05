// SPDX-License-Identifier: Apache-2.0
//
// Elements of tensors in host memory, one by one, whatever the dtype and the strides: what generator and judge read and write.
// The judge reads every element of large outputs many times: each costs a few ns. Inside core/tune only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/services.h"
#include "core/base/status.h"
#include "core/base/tensor.h"

namespace keirin {

// Writes a value: rounded to nearest even for floats, converted as C++ does for integers, != 0 for bool.
void store_element(DType dtype, void* at, double value);
void store_integer(DType dtype, void* at, int64_t value);

// Reads one, exactly; complex and 8-bit floats read as their raw bits' number.
double load_element(DType dtype, const void* at);

// The values of a 16-bit format by their bits.
const float* values_of_half();
const float* values_of_brain();

// fn(load), where load(i) is element i of an array of that dtype in row-major order, as load_element has it: the dtype is looked at
// once and not for each element.
template <class Fn>
decltype(auto) with_loader(DType dtype, const void* data, Fn&& fn) {
  const auto wide = [](auto x) { return static_cast<double>(x); };
  switch (dtype) {
    case DType::k_f32: return fn([p = static_cast<const float*>(data), wide](size_t i) { return wide(p[i]); });
    case DType::k_f64: return fn([p = static_cast<const double*>(data)](size_t i) { return p[i]; });
    case DType::k_f16: return fn([p = static_cast<const uint16_t*>(data), t = values_of_half(), wide](size_t i) { return wide(t[p[i]]); });
    case DType::k_bf16:
      return fn([p = static_cast<const uint16_t*>(data), t = values_of_brain(), wide](size_t i) { return wide(t[p[i]]); });
    default:
      return fn([p = static_cast<const char*>(data), dtype, bytes = static_cast<size_t>(dtype_bytes(dtype))](size_t i) {
        return load_element(dtype, p + i * bytes);
      });
  }
}

// Units of the last place of the dtype at that magnitude: distance to the next larger value.
double ulp_at(DType dtype, double magnitude);

int64_t num_elements(const Tensor& tensor);

bool same_sizes(const Tensor& a, const Tensor& b);
std::string number_text(double x);  // three digits, for sentences

// All of them in row-major order, from whatever device.
Result<std::vector<double>> read_values(const TensorRef& tensor, TensorServices& services);
// The largest magnitude among those that are finite; 0 where none is.
Result<double> largest_magnitude(const TensorRef& tensor, TensorServices& services);

// fn(index, address) for the elements [begin, end) in row-major order. The tensor lies in host memory.
template <class Fn>
void each_element(const Tensor& tensor, int64_t begin, int64_t end, Fn&& fn) {
  const int64_t rank = tensor.rank(), bytes = dtype_bytes(tensor.dtype());
  const int64_t row = rank > 0 ? tensor.sizes()[rank - 1] : 1, step = rank > 0 ? tensor.strides()[rank - 1] * bytes : 0;
  if (begin >= end) return;
  std::vector<int64_t> at(static_cast<size_t>(rank));
  char* start = static_cast<char*>(tensor.data());  // of the row
  for (int64_t axis = rank - 2, rows = begin / row; axis >= 0; rows /= tensor.sizes()[axis], --axis) {
    at[static_cast<size_t>(axis)] = rows % tensor.sizes()[axis];
    start += at[static_cast<size_t>(axis)] * tensor.strides()[axis] * bytes;
  }
  for (int64_t i = begin; i < end;) {
    char* address = start + i % row * step;
    for (const int64_t last = std::min(end, i - i % row + row); i < last; ++i, address += step) fn(i, static_cast<void*>(address));
    for (int64_t axis = rank - 2; axis >= 0; --axis) {
      const auto a = static_cast<size_t>(axis);
      start += tensor.strides()[axis] * bytes;
      if (++at[a] < tensor.sizes()[axis]) break;
      start -= tensor.sizes()[axis] * tensor.strides()[axis] * bytes;
      at[a] = 0;
    }
  }
}

template <class Fn>
void each_element(const Tensor& tensor, Fn&& fn) {
  each_element(tensor, 0, num_elements(tensor), std::forward<Fn>(fn));
}

// Slices of so many elements are worth a thread.
inline constexpr int64_t kElementsOfSlice = 1 << 16;

// fn(index, address) likewise, on several threads.
template <class Fn>
void each_element_parallel(const Tensor& tensor, TensorServices& services, Fn&& fn) {
  services.parallel_for(num_elements(tensor), kElementsOfSlice,
                        [&](int64_t begin, int64_t end) { each_element(tensor, begin, end, fn); });
}

// TensorServices::errors of large tensors on a device, with `ulps` units of the last place of `dtype` granted; nothing where the elements
// are few, in host memory, or not finite where they should be: then they are looked at one by one.
// Of two tensors: an element that is not finite in one of them has to be the same in the other.
std::optional<ElementErrors> errors_there(const TensorRef& reference, const TensorRef& other, TensorServices& services);
std::optional<ElementErrors> errors_there(const TensorRef& reference, const TensorRef& first, const TensorRef& second,
                                          TensorServices& services, DType dtype = DType::kNone, double ulps = 0);

// Largest integer that the dtype holds exactly, for generators.
int64_t largest_integer(DType dtype);

}  // namespace keirin
