// SPDX-License-Identifier: Apache-2.0
//
// The formulas behind the SCALAR and REDUCE rows of ops.def, each written once as a template over the number type.
// Instantiated with double or Int it is the oracle, with a code generator's Expr it builds the DAG to compile.
//
// Rules that keep it so: `select`, never `?:`, `if` or `&&`; literals as T(0.5); math by plain name, found by
// argument-dependent lookup. Only the primitives below are known to printers. bf16 and f16 run in f32: the formula never knows.
#pragma once

#include <math.h>
#include <stdint.h>

namespace keirin::scalar {

// ---- primitives on double -------------------------------------------------------------------------------------------

inline double select(bool c, double a, double b) { return c ? a : b; }
inline bool select(bool c, bool a, bool b) { return c ? a : b; }
inline bool is_nan(double x) { return x != x; }
inline double minimum(double a, double b) { return a < b || a != a ? a : b; }  // NaN propagates from either side
inline double maximum(double a, double b) { return a > b || a != a ? a : b; }
inline double abs(double x) { return ::fabs(x); }
inline double sqrt(double x) { return ::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / ::sqrt(x); }
inline double exp(double x) { return ::exp(x); }
inline double exp2(double x) { return ::exp2(x); }
inline double expm1(double x) { return ::expm1(x); }
inline double log(double x) { return ::log(x); }
inline double log1p(double x) { return ::log1p(x); }
inline double log2(double x) { return ::log2(x); }
inline double sin(double x) { return ::sin(x); }
inline double cos(double x) { return ::cos(x); }
inline double tanh(double x) { return ::tanh(x); }
inline double erf(double x) { return ::erf(x); }
inline double pow(double x, double y) { return ::pow(x, y); }
inline double floor(double x) { return ::floor(x); }
inline double ceil(double x) { return ::ceil(x); }
inline double trunc(double x) { return ::trunc(x); }
inline double round(double x) { return ::nearbyint(x); }  // the default rounding mode: ties to even
inline double fmod(double x, double y) { return ::fmod(x, y); }
inline bool logical_and(bool a, bool b) { return a & b; }
inline bool logical_or(bool a, bool b) { return a | b; }
inline bool logical_xor(bool a, bool b) { return a != b; }
inline bool logical_not(bool a) { return !a; }

// ---- primitives on wrapping integers: i64 arithmetic, the row's dtype wraps the result ------------------------------

struct Int {
  int64_t v;
  template <class N>
  constexpr explicit Int(N x) : v(static_cast<int64_t>(x)) {}
};
inline Int operator+(Int a, Int b) { return Int(static_cast<uint64_t>(a.v) + static_cast<uint64_t>(b.v)); }
inline Int operator-(Int a, Int b) { return Int(static_cast<uint64_t>(a.v) - static_cast<uint64_t>(b.v)); }
inline Int operator*(Int a, Int b) { return Int(static_cast<uint64_t>(a.v) * static_cast<uint64_t>(b.v)); }
inline Int operator-(Int a) { return Int(0) - a; }
inline bool operator<(Int a, Int b) { return a.v < b.v; }
inline bool operator<=(Int a, Int b) { return a.v <= b.v; }
inline bool operator>(Int a, Int b) { return a.v > b.v; }
inline bool operator>=(Int a, Int b) { return a.v >= b.v; }
inline bool operator==(Int a, Int b) { return a.v == b.v; }
inline bool operator!=(Int a, Int b) { return a.v != b.v; }
inline Int operator&(Int a, Int b) { return Int(a.v & b.v); }
inline Int operator|(Int a, Int b) { return Int(a.v | b.v); }
inline Int operator^(Int a, Int b) { return Int(a.v ^ b.v); }
inline Int operator~(Int a) { return Int(~a.v); }
inline Int select(bool c, Int a, Int b) { return c ? a : b; }
inline bool is_nan(Int) { return false; }
inline Int minimum(Int a, Int b) { return a.v < b.v ? a : b; }
inline Int maximum(Int a, Int b) { return a.v > b.v ? a : b; }
inline Int abs(Int a) { return select(a < Int(0), -a, a); }

}  // namespace keirin::scalar

// The formulas. A row whose name is itself a primitive forwards to it by ADL; the namespace is its own, so that `rows::exp`
// can call the primitive `exp` of any number type.
namespace keirin::rows {

#define KRN_ROW1 template <class T> inline auto
#define KRN_FORWARD1(name)        \
  template <class T>              \
  inline auto row_##name(T x) {   \
    return name(x);               \
  }
#define KRN_FORWARD2(name)            \
  template <class T>                  \
  inline auto row_##name(T a, T b) {  \
    return name(a, b);                \
  }

using scalar::abs, scalar::ceil, scalar::cos, scalar::erf, scalar::exp, scalar::exp2, scalar::expm1, scalar::floor,
    scalar::fmod, scalar::is_nan, scalar::log, scalar::log1p, scalar::log2, scalar::logical_and, scalar::logical_not,
    scalar::logical_or, scalar::logical_xor, scalar::maximum, scalar::minimum, scalar::pow, scalar::round, scalar::rsqrt,
    scalar::select, scalar::sin, scalar::sqrt, scalar::tanh, scalar::trunc;

KRN_ROW1 row_add(T a, T b) { return a + b; }
KRN_ROW1 row_sub(T a, T b) { return a - b; }
KRN_ROW1 row_mul(T a, T b) { return a * b; }
KRN_ROW1 row_div(T a, T b) { return a / b; }
KRN_ROW1 row_neg(T x) { return -x; }
KRN_FORWARD1(abs)
KRN_ROW1 row_sign(T x) { return select(x > T(0), T(1), select(x < T(0), T(-1), T(0))); }  // NaN gives 0, as in ATen
KRN_ROW1 row_reciprocal(T x) { return T(1) / x; }
KRN_FORWARD1(sqrt)
KRN_FORWARD1(rsqrt)
KRN_FORWARD1(exp)
KRN_FORWARD1(exp2)
KRN_FORWARD1(expm1)
KRN_FORWARD1(log)
KRN_FORWARD1(log1p)
KRN_FORWARD1(log2)
KRN_FORWARD1(sin)
KRN_FORWARD1(cos)
KRN_FORWARD1(tanh)
KRN_ROW1 row_sigmoid(T x) { return T(1) / (T(1) + exp(-x)); }
KRN_FORWARD1(erf)
KRN_ROW1 row_relu(T x) { return select(x <= T(0), T(0), x); }  // NaN passes through
KRN_ROW1 row_silu(T x) { return x / (T(1) + exp(-x)); }
KRN_ROW1 row_gelu(T x) { return T(0.5) * x * (T(1) + erf(x * T(0.70710678118654752440))); }
KRN_ROW1 row_gelu_tanh(T x) {
  return T(0.5) * x * (T(1) + tanh(T(0.79788456080286535588) * (x + T(0.044715) * x * x * x)));
}
KRN_ROW1 row_leaky_relu(T x, T slope) { return select(x > T(0), x, x * slope); }
KRN_ROW1 row_elu(T x, T alpha, T scale, T input_scale) {
  return select(x > T(0), x * scale, expm1(x * input_scale) * (alpha * scale));
}
KRN_ROW1 row_hardsigmoid(T x) { return minimum(maximum(x + T(3), T(0)), T(6)) * T(1.0 / 6.0); }
KRN_ROW1 row_hardswish(T x) { return x * minimum(maximum(x + T(3), T(0)), T(6)) * T(1.0 / 6.0); }
KRN_ROW1 row_softplus(T x, T beta, T threshold) {
  return select(x * beta > threshold, x, log1p(exp(x * beta)) / beta);
}
KRN_ROW1 row_mish(T x) { return x * tanh(log1p(exp(x))); }
KRN_ROW1 row_log_sigmoid(T x) { return minimum(x, T(0)) - log1p(exp(-abs(x))); }
KRN_FORWARD2(pow)
KRN_FORWARD2(maximum)
KRN_FORWARD2(minimum)
KRN_ROW1 row_clamp(T x, T low, T high) { return minimum(maximum(x, low), high); }
template <class B, class T>
inline T row_select(B c, T a, T b) {
  return select(c, a, b);
}
KRN_ROW1 row_eq(T a, T b) { return a == b; }
KRN_ROW1 row_ne(T a, T b) { return a != b; }
KRN_ROW1 row_lt(T a, T b) { return a < b; }
KRN_ROW1 row_le(T a, T b) { return a <= b; }
KRN_ROW1 row_gt(T a, T b) { return a > b; }
KRN_ROW1 row_ge(T a, T b) { return a >= b; }
KRN_FORWARD2(logical_and)
KRN_FORWARD2(logical_or)
KRN_FORWARD2(logical_xor)
KRN_FORWARD1(logical_not)
KRN_ROW1 row_bit_and(T a, T b) { return a & b; }
KRN_ROW1 row_bit_or(T a, T b) { return a | b; }
KRN_ROW1 row_bit_xor(T a, T b) { return a ^ b; }
KRN_ROW1 row_bit_not(T a) { return ~a; }
KRN_FORWARD1(floor)
KRN_FORWARD1(ceil)
KRN_FORWARD1(trunc)
KRN_FORWARD1(round)
KRN_FORWARD2(fmod)
KRN_FORWARD1(is_nan)
KRN_ROW1 row_cast(T x) { return x; }  // the conversion is in the operand's and the result's dtype

#undef KRN_ROW1
#undef KRN_FORWARD1
#undef KRN_FORWARD2

// ---- monoids of the REDUCE rows: start value and step -----------------------------------------------------------------
// `low` and `high` are the least and greatest value of the compute type (-inf and +inf for floats).

struct sum {
  template <class T> static T init(T, T) { return T(0); }
  template <class T> static T step(T acc, T x) { return acc + x; }
};
struct prod {
  template <class T> static T init(T, T) { return T(1); }
  template <class T> static T step(T acc, T x) { return acc * x; }
};
struct amax {
  template <class T> static T init(T low, T) { return low; }
  template <class T> static T step(T acc, T x) { return maximum(acc, x); }
};
struct amin {
  template <class T> static T init(T, T high) { return high; }
  template <class T> static T step(T acc, T x) { return minimum(acc, x); }
};

}  // namespace keirin::rows
