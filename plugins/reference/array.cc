// SPDX-License-Identifier: Apache-2.0
#include "plugins/reference/array.h"

#include <cmath>
#include <cstring>

#include "plugins/kit/error.h"

namespace keirin::reference {
namespace {

struct Info {
  char cls;
  int bits;
};

Info info(uint8_t dtype) {
  switch (dtype) {
#define KRN_DTYPE(id, name, bits, dl, cls) \
  case id:                                 \
    return {#cls[0], bits};
#include "abi/dtypes.def"
#undef KRN_DTYPE
    default:
      return {'x', 0};
  }
}

// Nearest value with `precision` significant bits, `least` the exponent of the smallest normal number, `greatest` the
// maximum.
double round_bits(double v, int precision, int least, double greatest) {
  if (v == 0 || std::isnan(v) || std::isinf(v)) return v;
  int exponent = std::ilogb(v);
  int unit = std::max(exponent, least) - (precision - 1);
  double rounded = std::ldexp(std::nearbyint(std::ldexp(v, -unit)), unit);
  return std::abs(rounded) > greatest ? std::copysign(INFINITY, v) : rounded;
}

template <class T>
T read(const uint8_t* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

double half_to_double(uint16_t h, int mantissa_bits, int bias) {
  int exponent_mask = (1 << (15 - mantissa_bits)) - 1;
  int exponent = (h >> mantissa_bits) & exponent_mask;
  int mantissa = h & ((1 << mantissa_bits) - 1);
  double magnitude;
  if (exponent == exponent_mask)
    magnitude = mantissa != 0 ? NAN : INFINITY;
  else if (exponent == 0)
    magnitude = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  else
    magnitude = std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  return (h & 0x8000u) != 0 ? -magnitude : magnitude;
}

// v is representable already.
uint16_t double_to_half(double v, int mantissa_bits, int bias) {
  uint16_t sign = std::signbit(v) ? 0x8000u : 0;
  int exponent_mask = (1 << (15 - mantissa_bits)) - 1;
  v = std::abs(v);
  if (std::isnan(v)) return static_cast<uint16_t>(sign | (exponent_mask << mantissa_bits) | (1 << (mantissa_bits - 1)));
  if (std::isinf(v)) return static_cast<uint16_t>(sign | (exponent_mask << mantissa_bits));
  if (v == 0) return sign;
  int exponent = std::max(std::ilogb(v), 1 - bias);
  int scaled = static_cast<int>(std::ldexp(v, mantissa_bits - exponent));
  int biased = scaled >= (1 << mantissa_bits) ? exponent + bias : 0;
  return static_cast<uint16_t>(sign | (biased << mantissa_bits) | (scaled & ((1 << mantissa_bits) - 1)));
}

double read_float(const uint8_t* p, uint8_t dtype) {
  switch (dtype) {
    case k_f16:
      return half_to_double(read<uint16_t>(p), 10, 15);
    case k_bf16:
      return half_to_double(read<uint16_t>(p), 7, 127);
    case k_f32:
      return read<float>(p);
    default:
      return read<double>(p);
  }
}

int64_t read_int(const uint8_t* p, uint8_t dtype) {
  switch (dtype) {
    case k_bool:
      return read<uint8_t>(p) != 0;
    case k_u8:
      return read<uint8_t>(p);
    case k_i8:
      return read<int8_t>(p);
    case k_i16:
      return read<int16_t>(p);
    case k_i32:
      return read<int32_t>(p);
    default:
      return read<int64_t>(p);
  }
}

void write_float(uint8_t* p, uint8_t dtype, double v) {
  uint16_t half;
  float single = static_cast<float>(v);
  switch (dtype) {
    case k_f16:
      half = double_to_half(v, 10, 15);
      std::memcpy(p, &half, 2);
      return;
    case k_bf16:
      half = double_to_half(v, 7, 127);
      std::memcpy(p, &half, 2);
      return;
    case k_f32:
      std::memcpy(p, &single, 4);
      return;
    default:
      std::memcpy(p, &v, 8);
  }
}

void check(const krn_tensor& t, uint8_t dtype) {
  bool wide = info(dtype).bits == t.dtype_bits && t.dtype_lanes == 1;
  if (!wide) throw kit::Error(KRN_STATUS_invalid_input, "a tensor of the run has another dtype than the graph states");
  if (t.data == nullptr && t.ndim > 0) {
    for (int32_t i = 0; i < t.ndim; ++i)
      if (t.shape[i] == 0) return;
    throw kit::Error(KRN_STATUS_invalid_input, "a tensor of the run has elements and no address");
  }
}

}  // namespace

bool is_float(uint8_t dtype) { return info(dtype).cls == 'f'; }
bool is_known(uint8_t dtype) { return info(dtype).cls != 'x'; }

double round_to(double v, uint8_t dtype) {
  switch (dtype) {
    case k_f16:
      return round_bits(v, 11, -14, 65504.0);
    case k_bf16:
      return round_bits(v, 8, -126, 3.3895313892515355e38);
    case k_f32:
      return static_cast<double>(static_cast<float>(v));
    default:
      return v;
  }
}

int64_t wrap_to(int64_t v, uint8_t dtype) {
  switch (dtype) {
    case k_bool:
      return v != 0;
    case k_u8:
      return static_cast<uint8_t>(v);
    case k_i8:
      return static_cast<int8_t>(v);
    case k_i16:
      return static_cast<int16_t>(v);
    case k_i32:
      return static_cast<int32_t>(v);
    default:
      return v;
  }
}

int64_t product(const Dims& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

Dims row_major(const Dims& sizes) {
  Dims strides(sizes.size());
  int64_t next = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = next;
    next *= sizes[i];
  }
  return strides;
}

Array Array::make(uint8_t dtype, Dims sizes) {
  Array a;
  a.dtype = dtype;
  a.sizes = std::move(sizes);
  if (a.floats())
    a.d.resize(a.count());
  else
    a.i.resize(a.count());
  return a;
}

Array load(const krn_tensor& tensor, uint8_t dtype) {
  check(tensor, dtype);
  Array a = Array::make(dtype, Dims(tensor.shape, tensor.shape + tensor.ndim));
  const auto* base = static_cast<const uint8_t*>(tensor.data);
  const int64_t bytes = info(dtype).bits / 8;
  walk<1>(a.sizes, {Dims(tensor.strides, tensor.strides + tensor.ndim)}, [&](int64_t k, const auto& at) {
    if (a.floats())
      a.d[k] = read_float(base + at[0] * bytes, dtype);
    else
      a.i[k] = read_int(base + at[0] * bytes, dtype);
  });
  return a;
}

void store(const Array& array, const krn_tensor& tensor) {
  check(tensor, array.dtype);
  if (Dims(tensor.shape, tensor.shape + tensor.ndim) != array.sizes)
    throw kit::Error(KRN_STATUS_invalid_input, "an output tensor has other sizes than the graph states");
  auto* base = static_cast<uint8_t*>(tensor.data);
  const int64_t bytes = info(array.dtype).bits / 8;
  walk<1>(array.sizes, {Dims(tensor.strides, tensor.strides + tensor.ndim)}, [&](int64_t k, const auto& at) {
    if (array.floats())
      write_float(base + at[0] * bytes, array.dtype, array.d[k]);
    else
      std::memcpy(base + at[0] * bytes, &array.i[k], bytes);
  });
}

}  // namespace keirin::reference
