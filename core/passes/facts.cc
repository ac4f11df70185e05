// SPDX-License-Identifier: Apache-2.0
#include "core/passes/facts.h"

#include <algorithm>
#include <cmath>

#include "abi/planted.h"

namespace keirin {
namespace {

// Bits of significand and least/greatest exponent, for rounding in double arithmetic.
struct FloatFormat {
  int digits;
  int min_exponent;  // of the least normal number
  double max;
};

double round_float(double x, const FloatFormat& format) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent = std::max(std::ilogb(x), format.min_exponent);
  double unit = std::ldexp(1.0, exponent - (format.digits - 1));
  double rounded = std::nearbyint(x / unit) * unit;  // a power of two: both steps are exact but for the rounding
  return std::fabs(rounded) > format.max ? std::copysign(INFINITY, x) : rounded;
}

int integer_bits(DType dtype) { return static_cast<int>(dtype_bytes(dtype)) * 8; }
bool is_signed(DType dtype) { return dtype != DType::k_u8; }

}  // namespace

const Op* made_by(const Graph& graph, ValueId v, OpCode code) {
  if (v == kNone || graph.values[v].producer == kNone) return nullptr;
  const Op& op = graph.ops[graph.values[v].producer];
  return op.code == code ? &op : nullptr;
}

std::optional<double> splat_of(const Graph& graph, ValueId v) {
  while (v != kNone && graph.values[v].producer != kNone) {
    const Op& op = graph.ops[graph.values[v].producer];
    switch (op.code) {
      case OpCode::k_full: {
        if (is_float(graph.type(v).dtype)) return round_to(graph.type(v).dtype, op.d(AttrKey::k_value_d));
        int64_t x = op.i(AttrKey::k_value_i);
        if (x > (int64_t{1} << 53) || x < -(int64_t{1} << 53)) return std::nullopt;
        return static_cast<double>(x);
      }
      case OpCode::k_pad:
        if (!KRN_PLANTED(pad_splat)) return std::nullopt;
        v = op.operands[0];
        break;
      case OpCode::k_cast:
        if (!is_lossless(graph.type(op.operands[0]).dtype, graph.type(v).dtype)) return std::nullopt;
        [[fallthrough]];
      case OpCode::k_expand: case OpCode::k_reshape: case OpCode::k_permute: case OpCode::k_slice: case OpCode::k_flip:
      case OpCode::k_relayout: v = op.operands[0]; break;
      default: return std::nullopt;
    }
  }
  return std::nullopt;
}

ValueId behind_broadcast(const Graph& graph, ValueId v) {
  for (;;) {
    if (const Op* op = made_by(graph, v, OpCode::k_expand)) {
      v = op->operands[0];
    } else if (const Op* shape = made_by(graph, v, OpCode::k_reshape)) {
      auto without_ones = [](Dims sizes) {
        sizes.erase(std::remove(sizes.begin(), sizes.end(), 1), sizes.end());
        return sizes;
      };
      if (without_ones(graph.type(v).sizes) != without_ones(graph.type(shape->operands[0]).sizes)) return v;
      v = shape->operands[0];
    } else {
      return v;
    }
  }
}

bool is_lossless(DType from, DType to) {
  if (from == to) return true;
  DTypeClass a = dtype_class(from), b = dtype_class(to);
  if (a == DTypeClass::x || b == DTypeClass::x) return false;
  if (a == DTypeClass::b) return true;
  if (b == DTypeClass::b) return false;
  if (a == DTypeClass::f) {
    if (to == DType::k_f64) return b == DTypeClass::f;
    return to == DType::k_f32 && (from == DType::k_f16 || from == DType::k_bf16);
  }
  int magnitude = integer_bits(from) - (is_signed(from) ? 1 : 0);
  if (b == DTypeClass::i) {
    if (is_signed(from) && !is_signed(to)) return false;
    return magnitude <= integer_bits(to) - (is_signed(to) ? 1 : 0);
  }
  switch (to) {
    case DType::k_bf16: return magnitude <= 8;
    case DType::k_f16: return magnitude <= 11;
    case DType::k_f32: return magnitude <= 24;
    default: return magnitude <= 53;
  }
}

double round_to(DType dtype, double x) {
  switch (dtype) {
    case DType::k_f32: return static_cast<double>(static_cast<float>(x));
    case DType::k_bf16: return round_float(static_cast<float>(x), {8, -126, 3.3895313892515355e38});
    case DType::k_f16: return round_float(static_cast<float>(x), {11, -14, 65504.0});
    default: return x;
  }
}

}  // namespace keirin
