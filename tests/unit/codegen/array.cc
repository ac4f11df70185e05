// SPDX-License-Identifier: Apache-2.0
//
// bf16 and f16 by hand: the compiler's own half types are not everywhere.
#include "tests/unit/codegen/array.h"

#include <bit>
#include <cmath>

namespace keirin::codegen::test {
namespace {

uint16_t to_bf16(float f) {
  uint32_t u = std::bit_cast<uint32_t>(f);
  if (f != f) return 0x7fc0;
  return static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
float from_bf16(uint16_t h) { return std::bit_cast<float>(static_cast<uint32_t>(h) << 16); }

double from_f16(uint16_t h) {
  int exponent = (h >> 10) & 31, fraction = h & 1023;
  double v = exponent == 31 ? (fraction ? NAN : INFINITY)
             : exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
  return h & 0x8000 ? -v : v;
}
uint16_t to_f16(double d) {
  uint16_t sign = std::signbit(d) ? 0x8000 : 0;
  if (d != d) return 0x7e00;
  double a = std::fabs(d);
  if (a >= 65520) return sign | 0x7c00;
  int exponent = a < std::ldexp(1, -14) ? -14 : std::ilogb(a);
  double steps = std::nearbyint(std::ldexp(a, 10 - exponent));
  uint16_t bits = steps < 1024 ? static_cast<uint16_t>(steps)
                               : static_cast<uint16_t>(((exponent + 15) << 10) + static_cast<int>(steps) - 1024);
  return sign | bits;
}

template <class T>
double get(const void* p, int64_t i) {
  return static_cast<double>(static_cast<const T*>(p)[i]);
}
template <class T>
void put(void* p, int64_t i, double v) {
  if constexpr (std::is_integral_v<T>) {
    static_cast<T*>(p)[i] = static_cast<T>(static_cast<int64_t>(v));
  } else {
    static_cast<T*>(p)[i] = static_cast<T>(v);
  }
}

}  // namespace

double load_element(const void* p, int64_t i, uint8_t dtype) {
  switch (dtype) {
    case kDType_bool: return get<uint8_t>(p, i) != 0;
    case kDType_u8: return get<uint8_t>(p, i);
    case kDType_i8: return get<int8_t>(p, i);
    case kDType_i16: return get<int16_t>(p, i);
    case kDType_i32: return get<int32_t>(p, i);
    case kDType_i64: return get<int64_t>(p, i);
    case kDType_f16: return from_f16(static_cast<const uint16_t*>(p)[i]);
    case kDType_bf16: return from_bf16(static_cast<const uint16_t*>(p)[i]);
    case kDType_f32: return get<float>(p, i);
    default: return get<double>(p, i);
  }
}

void store_element(void* p, int64_t i, uint8_t dtype, double v) {
  switch (dtype) {
    case kDType_bool: static_cast<uint8_t*>(p)[i] = v != 0; break;
    case kDType_u8: put<uint8_t>(p, i, v); break;
    case kDType_i8: put<int8_t>(p, i, v); break;
    case kDType_i16: put<int16_t>(p, i, v); break;
    case kDType_i32: put<int32_t>(p, i, v); break;
    case kDType_i64: put<int64_t>(p, i, v); break;
    case kDType_f16: static_cast<uint16_t*>(p)[i] = to_f16(v); break;
    case kDType_bf16: static_cast<uint16_t*>(p)[i] = to_bf16(static_cast<float>(v)); break;
    case kDType_f32: put<float>(p, i, v); break;
    default: put<double>(p, i, v); break;
  }
}

double through_dtype(double value, uint8_t dtype) {
  uint64_t cell = 0;
  store_element(&cell, 0, dtype, value);
  return load_element(&cell, 0, dtype);
}

}  // namespace keirin::codegen::test
