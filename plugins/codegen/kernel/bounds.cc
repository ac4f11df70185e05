// SPDX-License-Identifier: Apache-2.0
#include "plugins/codegen/kernel/bounds.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "plugins/codegen/kernel/rows.h"

namespace keirin::codegen {
namespace {

constexpr double kMostExact = 1 << 24;  // integers up to here are exact as f32, and sums and products of theirs as doubles

// Of f32 operations, whose roundings are far smaller. Integers stay as they are: min and max of literals are exact.
Bounds rounded(Bounds b) {
  const double low = b.low - 1e-6 * std::fabs(b.low), high = b.high + 1e-6 * std::fabs(b.high);
  return {low, high, b.is_number && std::isfinite(low) && std::isfinite(high)};
}

Bounds product(const Bounds& a, const Bounds& b) {
  const double all[] = {a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high};
  if (std::any_of(std::begin(all), std::end(all), [](double x) { return std::isnan(x); })) return {};
  return {*std::min_element(std::begin(all), std::end(all)), *std::max_element(std::begin(all), std::end(all)), true};
}

Bounds converted(const Bounds& from, Kind of, Kind to) {
  if (to == Kind::kBool) return {0, 1, true};
  if (of == to || of == Kind::kBool) return from;
  if (to != Kind::kI64) {
    if (std::max(std::fabs(from.low), std::fabs(from.high)) > kMostExact) return {};
    return of == Kind::kF64 ? rounded(from) : from;
  }
  if (!from.is_number || std::fabs(from.low) > kMostExact || std::fabs(from.high) > kMostExact) return {};
  return {std::trunc(from.low), std::trunc(from.high), true};
}

// An integer that is stored in few bits and read again.
Bounds wrapped(const Bounds& from, uint64_t dtype) {
  const bool fits = (dtype == kDType_i32 && from.low >= INT32_MIN && from.high <= INT32_MAX) ||
                    (dtype == kDType_i16 && from.low >= INT16_MIN && from.high <= INT16_MAX) ||
                    (dtype == kDType_i8 && from.low >= INT8_MIN && from.high <= INT8_MAX) ||
                    (dtype == kDType_u8 && from.low >= 0 && from.high <= UINT8_MAX);
  return fits ? from : Bounds{};
}

Bounds of_node(const Kernel& k, const Node& n, const std::vector<Bounds>& all) {
  const auto at = [&](int32_t operand) { return operand < 0 ? Bounds() : all[operand]; };
  const Bounds a = at(n.a), b = at(n.b);
  const bool is_integer = n.kind == Kind::kI64, numbers = is_integer || (a.is_number && b.is_number);
  const auto arithmetic = [&](Bounds out) {
    out.is_number = numbers;
    if (!is_integer) return numbers ? rounded(out) : Bounds();
    return std::max(std::fabs(out.low), std::fabs(out.high)) <= 0x1p52 ? out : Bounds();  // beyond, it may wrap
  };
  switch (n.prim) {
    case Prim::kCoord:
      if (k.axes[n.imm].kind == AxisKind::kSegment) return {};
      return {0, static_cast<double>(std::max<int64_t>(k.axes[n.imm].size, 1) - 1), true};
    case Prim::kLiteral: {
      double value = is_integer ? static_cast<double>(static_cast<int64_t>(n.imm)) : std::bit_cast<double>(n.imm);
      if (n.kind == Kind::kF32) value = static_cast<float>(value);  // as the code has it
      return std::isfinite(value) && std::fabs(value) <= 0x1p52 ? Bounds{value, value, true} : Bounds();
    }
    case Prim::kAdd: return arithmetic({a.low + b.low, a.high + b.high, true});
    case Prim::kSub: return arithmetic({a.low - b.high, a.high - b.low, true});
    case Prim::kMul: return arithmetic(product(a, b));
    case Prim::kNeg: return {-a.high, -a.low, a.is_number};
    case Prim::kFloor: return {std::floor(a.low), std::floor(a.high), a.is_number};
    case Prim::kMinimum: return numbers ? Bounds{std::min(a.low, b.low), std::min(a.high, b.high), true} : Bounds();
    case Prim::kMaximum: return numbers ? Bounds{std::max(a.low, b.low), std::max(a.high, b.high), true} : Bounds();
    case Prim::kSelect: {
      const Bounds c = at(n.c);
      return {std::min(b.low, c.low), std::max(b.high, c.high), b.is_number && c.is_number};
    }
    case Prim::kConvert: return converted(a, k.dag.nodes[n.a].kind, n.kind);
    case Prim::kRound16: return is_integer ? wrapped(a, n.imm) : Bounds();
    default: return {};
  }
}

}  // namespace

std::vector<Bounds> bounds_of(const Kernel& kernel) {
  std::vector<Bounds> out;
  for (const Node& node : kernel.dag.nodes) out.push_back(of_node(kernel, node, out));
  return out;
}

void find_inside(Kernel& kernel) {
  const std::vector<Bounds> bounds = bounds_of(kernel);
  for (Access& access : kernel.accesses)
    for (Access::Indirect& each : access.indirects)
      each.inside = bounds[each.node].low >= 0 && bounds[each.node].high < static_cast<double>(each.limit);
}

}  // namespace keirin::codegen
