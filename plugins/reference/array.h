// SPDX-License-Identifier: Apache-2.0
//
// A dense tensor of the reference interpreter: floats held as double, integers and bools as int64, in row-major order,
// always exactly representable in the dtype. Strides exist only where a run's tensors are read and written.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "abi/plugin.h"

namespace keirin::reference {

using Dims = std::vector<int64_t>;

enum Dtype : uint8_t {
#define KRN_DTYPE(id, name, bits, dl, cls) k_##name = id,
#include "abi/dtypes.def"
#undef KRN_DTYPE
};

bool is_float(uint8_t dtype);
bool is_known(uint8_t dtype);  // a dtype that operators compute in

// The nearest value of the dtype, ties to even, from double in one rounding. f64 and unknown dtypes: unchanged.
double round_to(double v, uint8_t dtype);
// Two's complement truncation; bool: v != 0.
int64_t wrap_to(int64_t v, uint8_t dtype);

int64_t product(const Dims& dims);
Dims row_major(const Dims& sizes);

struct Array {
  uint8_t dtype = 0;
  Dims sizes;
  std::vector<double> d;   // filled if is_float(dtype)
  std::vector<int64_t> i;  // else

  static Array make(uint8_t dtype, Dims sizes);
  bool floats() const { return is_float(dtype); }
  int64_t count() const { return product(sizes); }
  int64_t rank() const { return static_cast<int64_t>(sizes.size()); }
  double as_double(int64_t k) const { return floats() ? d[k] : static_cast<double>(i[k]); }
};

// fn(in, out) on the vectors of both arrays, which have the same class of dtype.
template <class F>
void on_data(const Array& in, Array& out, F&& fn) {
  if (in.floats())
    fn(in.d, out.d);
  else
    fn(in.i, out.i);
}

// fn(k, offsets) for each coordinate in row-major order: k counts, offsets[n] is the coordinate times strides[n].
template <size_t N, class F>
void walk(const Dims& sizes, const std::array<Dims, N>& strides, F&& fn) {
  const int64_t n = product(sizes);
  Dims at(sizes.size(), 0);
  std::array<int64_t, N> offsets{};
  for (int64_t k = 0; k < n; ++k) {
    fn(k, offsets);
    for (size_t axis = sizes.size(); axis-- > 0;) {
      for (size_t s = 0; s < N; ++s) offsets[s] += strides[s][axis];
      if (++at[axis] < sizes[axis]) break;
      for (size_t s = 0; s < N; ++s) offsets[s] -= strides[s][axis] * sizes[axis];
      at[axis] = 0;
    }
  }
}

// A run's tensor, any strides, into an array and back.
Array load(const krn_tensor& tensor, uint8_t dtype);
void store(const Array& array, const krn_tensor& tensor);

}  // namespace keirin::reference
