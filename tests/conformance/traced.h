// SPDX-License-Identifier: Apache-2.0
//
// A number type for the formulas of abi/scalar.h: the value in double, and how far a computation of the same formula in the
// compute type C may lie from it if each primitive stays within its own row's tolerance. A formula that cancels (gelu's tail)
// or amplifies (exp of a product) gets the room that its own rounding needs, and no other gets any. First order, not a proof.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "abi/scalar.h"
#include "core/ops/table.h"

namespace keirin::conformance {

template <class C>
struct Traced {
  double v = 0;
  double room = 0;  // infinite: an intermediate is beyond C's range, and what comes of it is not the formula's to say

  Traced() = default;
  explicit Traced(double x) : Traced(x, static_cast<double>(static_cast<C>(x)) == x ? 0 : ulp(x) / 2) {}
  Traced(double value, double error) : v(value), room(error) {}

  static double ulp(double x) {
    if (!std::isfinite(x)) return 0;
    const double least = std::numeric_limits<C>::min(), magnitude = std::max(std::abs(x), least);
    return std::ldexp(1.0, std::ilogb(magnitude) - std::numeric_limits<C>::digits + 1);
  }

  // The result of a primitive: the operands' room, carried over as `error`, and `ulps` of its own.
  static Traced made(double value, double error, double ulps, bool from_special) {
    if (from_special) return {value, std::isinf(error) ? INFINITY : 0};
    error += ulps * ulp(value);
    const bool beyond = !(std::abs(value) + error <= static_cast<double>(std::numeric_limits<C>::max()));
    return {value, beyond && !std::isnan(value) ? INFINITY : error};
  }
};

template <class C, class F>
Traced<C> traced_unary(Traced<C> x, OpCode row, F f) {
  const double value = f(x.v), ulps = row_meaning(row).tolerance_ulp;
  if (!std::isfinite(x.v) || std::isinf(x.room)) return Traced<C>::made(value, x.room, 0, true);
  double error = 0;
  if (x.room != 0) error = std::max(std::abs(f(x.v + x.room) - value), std::abs(f(x.v - x.room) - value));
  return Traced<C>::made(value, error, std::max(ulps, 0.5), false);
}

template <class C>
bool special(Traced<C> a, Traced<C> b) { return !std::isfinite(a.v) || !std::isfinite(b.v); }
inline double times_room(double x, double room) { return room == 0 ? 0 : std::abs(x) * room; }

template <class C>
Traced<C> operator+(Traced<C> a, Traced<C> b) { return Traced<C>::made(a.v + b.v, a.room + b.room, 0.5, special(a, b)); }
template <class C>
Traced<C> operator-(Traced<C> a, Traced<C> b) { return Traced<C>::made(a.v - b.v, a.room + b.room, 0.5, special(a, b)); }
template <class C>
Traced<C> operator*(Traced<C> a, Traced<C> b) {
  return Traced<C>::made(a.v * b.v, times_room(a.v, b.room) + times_room(b.v, a.room) + times_room(a.room, b.room), 0.5, special(a, b));
}
template <class C>
Traced<C> operator/(Traced<C> a, Traced<C> b) {
  const double value = a.v / b.v;
  if (a.room == 0 && b.room == 0) return Traced<C>::made(value, 0, 0.5, special(a, b) || b.v == 0);
  const double left = std::abs(b.v) - b.room;
  return Traced<C>::made(value, left > 0 ? (a.room + times_room(value, b.room)) / left : INFINITY, 0.5, special(a, b));
}
template <class C>
Traced<C> operator-(Traced<C> a) { return {-a.v, a.room}; }

#define KRN_TRACED_COMPARE(op) \
  template <class C>           \
  bool operator op(Traced<C> a, Traced<C> b) { return a.v op b.v; }
KRN_TRACED_COMPARE(<)
KRN_TRACED_COMPARE(<=)
KRN_TRACED_COMPARE(>)
KRN_TRACED_COMPARE(>=)
KRN_TRACED_COMPARE(==)
KRN_TRACED_COMPARE(!=)
#undef KRN_TRACED_COMPARE

#define KRN_TRACED_UNARY(name) \
  template <class C>           \
  Traced<C> name(Traced<C> x) { return traced_unary(x, OpCode::k_##name, [](double t) { return scalar::name(t); }); }
KRN_TRACED_UNARY(abs)
KRN_TRACED_UNARY(sqrt)
KRN_TRACED_UNARY(rsqrt)
KRN_TRACED_UNARY(exp)
KRN_TRACED_UNARY(exp2)
KRN_TRACED_UNARY(expm1)
KRN_TRACED_UNARY(log)
KRN_TRACED_UNARY(log1p)
KRN_TRACED_UNARY(log2)
KRN_TRACED_UNARY(sin)
KRN_TRACED_UNARY(cos)
KRN_TRACED_UNARY(tanh)
KRN_TRACED_UNARY(erf)
KRN_TRACED_UNARY(floor)
KRN_TRACED_UNARY(ceil)
KRN_TRACED_UNARY(trunc)
KRN_TRACED_UNARY(round)
#undef KRN_TRACED_UNARY

// Rows by themselves: their operands are exact.
template <class C>
Traced<C> pow(Traced<C> a, Traced<C> b) {
  return Traced<C>::made(scalar::pow(a.v, b.v), a.room + b.room, row_meaning(OpCode::k_pow).tolerance_ulp, special(a, b));
}
template <class C>
Traced<C> fmod(Traced<C> a, Traced<C> b) { return {scalar::fmod(a.v, b.v), a.room + b.room}; }
template <class C>
Traced<C> select(bool c, Traced<C> a, Traced<C> b) { return c ? a : b; }
template <class C>
bool is_nan(Traced<C> x) { return std::isnan(x.v); }
template <class C>
Traced<C> minimum(Traced<C> a, Traced<C> b) { return {scalar::minimum(a.v, b.v), std::max(a.room, b.room)}; }
template <class C>
Traced<C> maximum(Traced<C> a, Traced<C> b) { return {scalar::maximum(a.v, b.v), std::max(a.room, b.room)}; }

}  // namespace keirin::conformance
