// SPDX-License-Identifier: Apache-2.0
#include "core/tune/elements.h"

#include <string.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>

namespace keirin {
namespace {

// A binary float by its widths. Subnormals and infinities as IEEE-754.
struct FloatFormat {
  int exponent_bits, fraction_bits;
};

constexpr FloatFormat kHalf{5, 10}, kBrain{8, 7};

uint16_t encode(FloatFormat f, double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const auto infinity = static_cast<uint16_t>(((1 << f.exponent_bits) - 1) << f.fraction_bits);
  const double magnitude = std::abs(value);
  if (std::isnan(value)) return sign | infinity | static_cast<uint16_t>(1 << (f.fraction_bits - 1));
  if (std::isinf(value)) return sign | infinity;
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), 1 - bias);
  // nearbyint rounds to even; a carry runs into the exponent by itself.
  const double steps = std::nearbyint(std::ldexp(magnitude, f.fraction_bits - exponent));
  const double units = steps + (exponent + bias - 1) * std::ldexp(1.0, f.fraction_bits);
  return units >= infinity ? sign | infinity : sign | static_cast<uint16_t>(units);
}

double decode(FloatFormat f, uint16_t bits) {
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const int exponent = bits >> f.fraction_bits & ((1 << f.exponent_bits) - 1);
  const int fraction = bits & ((1 << f.fraction_bits) - 1);
  double value;
  if (exponent == (1 << f.exponent_bits) - 1) {
    value = fraction ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  } else {
    const int whole = exponent ? fraction + (1 << f.fraction_bits) : fraction;
    value = std::ldexp(whole, std::max(exponent, 1) - bias - f.fraction_bits);
  }
  return bits & 0x8000 ? -value : value;
}

// All values of a 16-bit format, because decoding each anew costs more than all else that the judge does.
std::vector<float> decode_all(FloatFormat f) {
  std::vector<float> values(1 << 16);
  for (size_t bits = 0; bits < values.size(); ++bits) values[bits] = static_cast<float>(decode(f, static_cast<uint16_t>(bits)));
  return values;
}

template <class T>
void put(void* at, T value) {
  memcpy(at, &value, sizeof(T));
}

template <class T>
T get(const void* at) {
  T value;
  memcpy(&value, at, sizeof(T));
  return value;
}

}  // namespace

void store_element(DType dtype, void* at, double value) {
  switch (dtype) {
    case DType::k_f16: return put(at, encode(kHalf, value));
    case DType::k_bf16: return put(at, encode(kBrain, value));
    case DType::k_f32: return put(at, static_cast<float>(value));
    case DType::k_f64: return put(at, value);
    case DType::k_c64: {
      put(at, static_cast<float>(value));
      return put(static_cast<char*>(at) + 4, static_cast<float>(value / 2));
    }
    case DType::k_c128: {
      put(at, value);
      return put(static_cast<char*>(at) + 8, value / 2);
    }
    default: return store_integer(dtype, at, static_cast<int64_t>(value));
  }
}

void store_integer(DType dtype, void* at, int64_t value) {
  switch (dtype) {
    case DType::k_bool: return put(at, static_cast<uint8_t>(value != 0));
    case DType::k_u8: return put(at, static_cast<uint8_t>(value));
    case DType::k_i8: return put(at, static_cast<int8_t>(value));
    case DType::k_i16: return put(at, static_cast<int16_t>(value));
    case DType::k_i32: return put(at, static_cast<int32_t>(value));
    case DType::k_i64: return put(at, value);
    case DType::k_u16: return put(at, static_cast<uint16_t>(value));
    case DType::k_u32: return put(at, static_cast<uint32_t>(value));
    case DType::k_u64: return put(at, static_cast<uint64_t>(value));
    case DType::k_c64:
    case DType::k_c128:
    case DType::k_f16:
    case DType::k_bf16:
    case DType::k_f32:
    case DType::k_f64: return store_element(dtype, at, static_cast<double>(value));
    case DType::k_f8_e4m3fn:
    case DType::k_f8_e5m2: return put(at, static_cast<uint8_t>(value & 0x3f));  // a finite number of either format
    case DType::kNone: return;
  }
}

const float* values_of_half() {
  static const std::vector<float> values = decode_all(kHalf);
  return values.data();
}

const float* values_of_brain() {
  static const std::vector<float> values = decode_all(kBrain);
  return values.data();
}

double load_element(DType dtype, const void* at) {
  switch (dtype) {
    case DType::k_bool:
    case DType::k_u8:
    case DType::k_f8_e4m3fn:
    case DType::k_f8_e5m2: return get<uint8_t>(at);
    case DType::k_i8: return get<int8_t>(at);
    case DType::k_i16: return get<int16_t>(at);
    case DType::k_i32: return get<int32_t>(at);
    case DType::k_i64: return static_cast<double>(get<int64_t>(at));
    case DType::k_u16: return get<uint16_t>(at);
    case DType::k_u32: return get<uint32_t>(at);
    case DType::k_u64: return static_cast<double>(get<uint64_t>(at));
    case DType::k_f16: return static_cast<double>(values_of_half()[get<uint16_t>(at)]);
    case DType::k_bf16: return static_cast<double>(values_of_brain()[get<uint16_t>(at)]);
    case DType::k_f32:
    case DType::k_c64: return static_cast<double>(get<float>(at));
    case DType::k_f64:
    case DType::k_c128: return get<double>(at);
    case DType::kNone: return 0;
  }
  return 0;
}

double ulp_at(DType dtype, double magnitude) {
  int fraction, least;  // bits behind the point, exponent of the least normal
  switch (dtype) {
    case DType::k_f16: fraction = 10, least = -14; break;
    case DType::k_bf16: fraction = 7, least = -126; break;
    case DType::k_f32: fraction = 23, least = -126; break;
    case DType::k_f64: fraction = 52, least = -1022; break;
    default: return 0;
  }
  // The exponent's bits, as std::ilogb tells it of normal numbers; smaller ones are below the least anyway.
  constexpr int kBias = 1023, kFraction = 52;
  const auto bits = std::bit_cast<uint64_t>(magnitude);
  const int own = static_cast<int>(bits >> kFraction) - kBias;
  const int exponent = magnitude > 0 && std::isfinite(magnitude) ? std::max(own, least) : least;
  const int result = exponent - fraction;
  if (result + kBias <= 0) return std::ldexp(1.0, result);
  return std::bit_cast<double>(static_cast<uint64_t>(result + kBias) << kFraction);
}

int64_t num_elements(const Tensor& tensor) {
  int64_t n = 1;
  for (int64_t i = 0; i < tensor.rank(); ++i) n *= tensor.sizes()[i];
  return n;
}

int64_t largest_integer(DType dtype) {
  switch (dtype) {
    case DType::k_bool: return 1;
    case DType::k_i8: return 127;
    case DType::k_u8: return 255;
    case DType::k_i16: return 32767;
    case DType::k_u16: return 65535;
    case DType::k_i32: return 0x7fffffff;
    case DType::k_u32: return 0xffffffff;
    case DType::k_f16: return 2048;
    case DType::k_bf16: return 256;
    case DType::k_f32: return 1 << 24;
    default: return int64_t{1} << 53;
  }
}

bool same_sizes(const Tensor& a, const Tensor& b) {
  return a.rank() == b.rank() && std::equal(a.sizes(), a.sizes() + a.rank(), b.sizes());
}

std::string number_text(double x) {
  char text[32];
  snprintf(text, sizeof text, "%.3g", x);
  return text;
}

Result<std::vector<double>> read_values(const TensorRef& tensor, TensorServices& services) {
  TensorRef host = tensor;
  if (tensor->device().kind != Device::kCpu) {
    KRN_TRY_LET(host, services.to_device(tensor, Device{}));
  }
  std::vector<double> values(static_cast<size_t>(num_elements(*host)));
  each_element_parallel(*host, services, [&](int64_t i, void* at) { values[static_cast<size_t>(i)] = load_element(host->dtype(), at); });
  return values;
}

Result<double> largest_magnitude(const TensorRef& tensor, TensorServices& services) {
  if (const auto errors = errors_there(tensor, tensor, services)) return errors->scale;
  KRN_TRY_LET(const std::vector<double> values, read_values(tensor, services));
  double largest = 0;
  for (const double value : values)
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  return largest;
}

std::optional<ElementErrors> errors_there(const TensorRef& reference, const TensorRef& other, TensorServices& services) {
  return errors_there(reference, reference, other, services);
}

std::optional<ElementErrors> errors_there(const TensorRef& reference, const TensorRef& first, const TensorRef& second,
                                          TensorServices& services, DType dtype, double ulps) {
  constexpr int64_t kFew = 1 << 15;  // which the host has read before the device has begun
  const Device device = reference->device();
  if (device.kind == Device::kCpu || first->device() != device || second->device() != device) return std::nullopt;
  for (const TensorRef& each : {reference, first, second})
    if (dtype_class(each->dtype()) == DTypeClass::x) return std::nullopt;
  if (num_elements(*reference) < kFew || !same_sizes(*reference, *first) || !same_sizes(*reference, *second)) return std::nullopt;
  const Result<ElementErrors> errors =
      services.errors(reference, first, second, {ulps * ulp_at(dtype, 1), ulps * ulp_at(dtype, 0)});
  return errors.ok() && errors->explained && errors->judged > 0 ? std::optional(*errors) : std::nullopt;
}

}  // namespace keirin
