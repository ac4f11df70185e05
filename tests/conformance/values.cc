// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/base/half.h"

namespace keirin::conformance {
namespace {

struct Format {
  int precision, least;  // significant bits, exponent of the smallest normal number
  double greatest;
};
Format format_of(DType dtype) {
  switch (dtype) {
    case DType::k_f16: return {11, -14, 65504.0};
    case DType::k_bf16: return {8, -126, 3.3895313892515355e38};
    case DType::k_f32: return {24, -126, std::numeric_limits<float>::max()};
    default: return {53, -1022, std::numeric_limits<double>::max()};
  }
}

template <class T>
void write(void* at, T v) { std::memcpy(at, &v, sizeof v); }
template <class T>
T read(const void* at) {
  T v;
  std::memcpy(&v, at, sizeof v);
  return v;
}

using Random = std::mt19937_64;

double uniform(Random& r) { return static_cast<double>(r() >> 11) * 0x1p-53; }
double normal(Random& r) { return std::sqrt(-2 * std::log(1 - uniform(r))) * std::cos(6.283185307179586 * uniform(r)); }

double random_float(const Feed& feed, Random& r) {
  switch (feed.fill) {
    case Feed::kPositive: return std::abs(normal(r)) + 0.1;
    case Feed::kNonneg: return std::abs(normal(r));
    case Feed::kNonzero: return std::copysign(std::abs(normal(r)) + 0.1, uniform(r) - 0.5);
    case Feed::kNearOne: return std::copysign(0.9 + 0.2 * uniform(r), uniform(r) - 0.1);
    case Feed::kCoarse: return std::round(normal(r) * 2) / 2;
    case Feed::kSmall: return uniform(r) * 100;
    // Mostly where models live, sometimes far out, where formulas saturate.
    default: return normal(r) * (r() % 8 == 0 ? 12 : 1.5);
  }
}

constexpr uint64_t kOfProducts[] = {0, 1, 2, 7, 8, 9, 10};  // cases of edge_float without denormals and extremes

double edge_float(DType dtype, const Feed& feed, Random& r) {
  const Format f = format_of(dtype);
  const double tiny = std::ldexp(1.0, f.least - f.precision + 1), normal_min = std::ldexp(1.0, f.least);
  const bool positive = feed.fill == Feed::kPositive || feed.fill == Feed::kNonneg;
  const double sign = !positive && r() % 2 ? -1 : 1;
  // Where the order of a product decides whether it passes through zero, nothing is that small.
  const bool small = feed.fill != Feed::kNearOne;
  switch (small ? r() % 12 : kOfProducts[r() % std::size(kOfProducts)]) {
    case 0: return std::nan("");
    case 1: return sign * INFINITY;
    case 2: return feed.fill == Feed::kPositive || feed.fill == Feed::kNonzero ? sign : sign * 0.0;
    case 3: return sign * tiny * static_cast<double>(1 + r() % 7);
    case 4: return sign * (normal_min - tiny);
    case 5: return sign * normal_min;
    case 6: return sign * (feed.extremes ? f.greatest : 2);
    case 7: return sign * 0.5;
    case 8: return sign;
    case 9: return sign * (std::round(std::abs(normal(r)) * 3) + 0.5);
    default: return random_float(feed, r);
  }
}

int64_t random_integer(DType dtype, const Feed& feed, Random& r) {
  if (dtype == DType::k_bool) return static_cast<int64_t>(r() % 2);
  if (feed.fill == Feed::kCoarse) return static_cast<int64_t>(r() % 7);
  const bool is_unsigned = dtype == DType::k_u8;
  return static_cast<int64_t>(r() % 101) - (is_unsigned || feed.fill == Feed::kSmall ? 0 : 50);
}

int64_t edge_integer(DType dtype, const Feed& feed, Random& r) {
  const int bits = static_cast<int>(dtype_bytes(dtype)) * 8;
  const int64_t high = dtype == DType::k_u8 ? 255 : bits == 64 ? std::numeric_limits<int64_t>::max() : (int64_t{1} << (bits - 1)) - 1;
  const int64_t low = dtype == DType::k_u8 ? 0 : -high - 1;
  switch (r() % 6) {
    case 0: return high;
    case 1: return low;
    case 2: return high - static_cast<int64_t>(r() % 3);
    case 3: return static_cast<int64_t>(r() % 3) - (low < 0 ? 1 : 0);
    case 4: return low / 2 - 1 + static_cast<int64_t>(r() % 3);
    default: return random_integer(dtype, feed, r);
  }
}

// Numbers that are picked together: an index without doubles, ascending offsets.
std::vector<int64_t> whole_list(const Feed& feed, size_t n, size_t row, Random& r) {
  std::vector<int64_t> out(n);
  if (feed.fill == Feed::kDistinct) {
    std::vector<int64_t> all(static_cast<size_t>(feed.bound));
    std::iota(all.begin(), all.end(), 0);
    for (size_t at = 0; at < n; at += row) {
      for (size_t i = all.size(); i-- > 1;) std::swap(all[i], all[r() % (i + 1)]);
      for (size_t i = at; i < std::min(n, at + row); ++i) out[i] = all[(i - at) % all.size()];
    }
    return out;
  }
  for (int64_t& v : out) v = static_cast<int64_t>(r() % static_cast<uint64_t>(feed.bound + (feed.fill == Feed::kIndex ? 0 : 1)));
  if (feed.fill != Feed::kIndex && n > 0) {
    out[0] = 0;
    std::sort(out.begin(), out.end());
    if (feed.fill == Feed::kPartition) out.back() = feed.bound;
  }
  return out;
}

}  // namespace

double round_once(DType dtype, double v) {
  if (!is_float(dtype) || dtype == DType::k_f64 || v == 0 || std::isnan(v) || std::isinf(v)) return v;
  const Format f = format_of(dtype);
  const int unit = std::max(std::ilogb(v), f.least) - (f.precision - 1);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(v, -unit)), unit);
  return std::abs(rounded) > f.greatest ? std::copysign(INFINITY, v) : rounded;
}

void put_double(DType dtype, double v, void* at) {
  v = round_once(dtype, v);
  if (dtype == DType::k_f64) return write(at, v);
  const auto f = static_cast<float>(v);
  if (dtype == DType::k_f32) return write(at, f);
  if (dtype == DType::k_f16) return write(at, static_cast<Float16>(f));
  write(at, static_cast<uint16_t>(read<uint32_t>(&f) >> 16 | (std::isnan(v) ? 0x40 : 0)));
}

void put_integer(DType dtype, int64_t v, void* at) {
  if (dtype == DType::k_bool) v = v != 0;
  std::memcpy(at, &v, static_cast<size_t>(dtype_bytes(dtype)));  // little endian: truncation wraps
}

double get_double(DType dtype, const void* at) {
  switch (dtype) {
    case DType::k_f64: return read<double>(at);
    case DType::k_f32: return read<float>(at);
    case DType::k_f16: return static_cast<double>(static_cast<float>(read<Float16>(at)));
    case DType::k_bf16: {
      const uint32_t bits = static_cast<uint32_t>(read<uint16_t>(at)) << 16;
      return read<float>(&bits);
    }
    default: return static_cast<double>(get_integer(dtype, at));
  }
}

int64_t get_integer(DType dtype, const void* at) {
  switch (dtype) {
    case DType::k_i64: return read<int64_t>(at);
    case DType::k_i32: return read<int32_t>(at);
    case DType::k_i16: return read<int16_t>(at);
    case DType::k_i8: return read<int8_t>(at);
    default: return read<uint8_t>(at);
  }
}

std::vector<uint8_t> fill(const Type& type, const Feed& feed, bool edges, uint64_t seed) {
  Random r(seed);
  const auto n = static_cast<size_t>(type.num_elements()), size = static_cast<size_t>(dtype_bytes(type.dtype));
  std::vector<uint8_t> out(n * size);
  const bool listed = feed.fill >= Feed::kIndex;  // the last of the enum
  std::vector<int64_t> list;
  if (listed && n > 0) list = whole_list(feed, n, type.sizes.empty() ? 1 : static_cast<size_t>(type.sizes.back()), r);
  for (size_t i = 0; i < n; ++i) {
    void* const at = out.data() + i * size;
    if (listed) put_integer(type.dtype, list[i], at);
    else if (is_float(type.dtype))
      put_double(type.dtype, edges && feed.edges ? edge_float(type.dtype, feed, r) : random_float(feed, r), at);
    else
      put_integer(type.dtype,
                  edges && feed.edges && is_int(type.dtype) ? edge_integer(type.dtype, feed, r) : random_integer(type.dtype, feed, r), at);
  }
  return out;
}

}  // namespace keirin::conformance
