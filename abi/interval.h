// SPDX-License-Identifier: Apache-2.0
//
// Interval: the number type that turns the formulas of abi/scalar.h into proofs about ranges. Truth is its answer to a
// comparison. An Interval holds every value that the formula can give for operands in their intervals, rounding to a dtype
// aside; that, and the wrapping of integers, is the caller's. Only the primitives of the exact class are here: a row that
// needs another one does not compile for Interval, and the caller leaves it out.
#pragma once

#include <math.h>

#include "abi/scalar.h"

namespace keirin::scalar {

// May be true, may be false.
struct Truth {
  bool can_be_true, can_be_false;
};

struct Interval {
  double low, high;
  bool nan;  // may be NaN, too
  explicit Interval(double x) : low(x), high(x), nan(x != x) {}
  Interval(double l, double h, bool n) : low(l), high(h), nan(n) {}
};

inline Interval everything() { return Interval(-INFINITY, INFINITY, true); }
inline bool is_everything(const Interval& x) { return x.nan && x.low == -INFINITY && x.high == INFINITY; }
inline bool has_infinity(const Interval& x) { return x.low == -INFINITY || x.high == INFINITY; }
inline bool has_zero(const Interval& x) { return x.low <= 0 && x.high >= 0; }
inline double least(double a, double b) { return a < b ? a : b; }
inline double greatest(double a, double b) { return a > b ? a : b; }
inline Interval hull(const Interval& a, const Interval& b) {
  return Interval(least(a.low, b.low), greatest(a.high, b.high), a.nan || b.nan);
}
// Bounds that are themselves NaN (inf - inf) mean that nothing is known.
inline Interval known(const Interval& x) { return x.low <= x.high ? x : everything(); }

inline Interval operator+(Interval a, Interval b) {
  bool cancels = (a.high == INFINITY && b.low == -INFINITY) || (a.low == -INFINITY && b.high == INFINITY);
  return known(Interval(a.low + b.low, a.high + b.high, a.nan || b.nan || cancels));
}
inline Interval operator-(Interval a) { return Interval(-a.high, -a.low, a.nan); }
inline Interval operator-(Interval a, Interval b) { return a + -b; }
inline Interval operator*(Interval a, Interval b) {
  if ((has_infinity(a) && has_zero(b)) || (has_infinity(b) && has_zero(a))) return everything();
  double p = a.low * b.low, q = a.low * b.high, r = a.high * b.low, s = a.high * b.high;
  return known(Interval(least(least(p, q), least(r, s)), greatest(greatest(p, q), greatest(r, s)), a.nan || b.nan));
}
inline Interval operator/(Interval a, Interval b) {
  if (has_zero(b) || (has_infinity(a) && has_infinity(b))) return everything();
  double p = a.low / b.low, q = a.low / b.high, r = a.high / b.low, s = a.high / b.high;
  return known(Interval(least(least(p, q), least(r, s)), greatest(greatest(p, q), greatest(r, s)), a.nan || b.nan));
}

inline Truth operator<(Interval a, Interval b) { return {a.low < b.high, a.high >= b.low || a.nan || b.nan}; }
inline Truth operator<=(Interval a, Interval b) { return {a.low <= b.high, a.high > b.low || a.nan || b.nan}; }
inline Truth operator>(Interval a, Interval b) { return b < a; }
inline Truth operator>=(Interval a, Interval b) { return b <= a; }
inline Truth operator==(Interval a, Interval b) {
  bool single = a.low == a.high && b.low == b.high && a.low == b.low && !a.nan && !b.nan;
  return {a.low <= b.high && b.low <= a.high, !single};
}
inline Truth operator!=(Interval a, Interval b) {
  Truth t = a == b;
  return {t.can_be_false, t.can_be_true};
}

inline Interval select(Truth c, Interval a, Interval b) {
  if (!c.can_be_false) return a;
  if (!c.can_be_true) return b;
  return hull(a, b);
}
inline Truth is_nan(Interval x) { return {x.nan, true}; }
inline Interval minimum(Interval a, Interval b) { return Interval(least(a.low, b.low), least(a.high, b.high), a.nan || b.nan); }
inline Interval maximum(Interval a, Interval b) {
  return Interval(greatest(a.low, b.low), greatest(a.high, b.high), a.nan || b.nan);
}
inline Interval abs(Interval x) {
  double high = greatest(fabs(x.low), fabs(x.high));
  return Interval(has_zero(x) ? 0.0 : least(fabs(x.low), fabs(x.high)), high, x.nan);
}
inline Interval sqrt(Interval x) {
  if (x.high < 0) return everything();
  return Interval(x.low > 0 ? ::sqrt(x.low) : 0.0, ::sqrt(x.high), x.nan || x.low < 0);
}
inline Interval floor(Interval x) { return Interval(::floor(x.low), ::floor(x.high), x.nan); }
inline Interval ceil(Interval x) { return Interval(::ceil(x.low), ::ceil(x.high), x.nan); }
inline Interval trunc(Interval x) { return Interval(::trunc(x.low), ::trunc(x.high), x.nan); }
inline Interval round(Interval x) { return Interval(::nearbyint(x.low), ::nearbyint(x.high), x.nan); }

inline Truth logical_and(Truth a, Truth b) { return {a.can_be_true && b.can_be_true, a.can_be_false || b.can_be_false}; }
inline Truth logical_or(Truth a, Truth b) { return {a.can_be_true || b.can_be_true, a.can_be_false && b.can_be_false}; }
inline Truth logical_not(Truth a) { return {a.can_be_false, a.can_be_true}; }
inline Truth logical_xor(Truth a, Truth b) {
  return {(a.can_be_true && b.can_be_false) || (a.can_be_false && b.can_be_true),
          (a.can_be_true && b.can_be_true) || (a.can_be_false && b.can_be_false)};
}

}  // namespace keirin::scalar
