// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/formula.h"

#include <cmath>

#include "abi/scalar.h"
#include "core/ops/table.h"
#include "tests/conformance/traced.h"
#include "tests/conformance/values.h"

namespace keirin::conformance {
namespace {

using scalar::Int;

template <class C>
struct FloatNumber {
  static Traced<C> from(const Number& n) { return {n.d, 0}; }
};
struct IntNumber {
  static Int from(const Number& n) { return Int(n.i); }
};
struct BoolNumber {
  static bool from(const Number& n) { return n.i != 0; }
};

template <class C>
Number as_number(Traced<C> x) { return {x.v, 0, x.room}; }
Number as_number(Int v) { return {0, v.v}; }
Number as_number(bool v) { return {0, v ? 1 : 0}; }

template <class N, int kArity, class F>
Number call(F f, const Number* x) {
  if constexpr (kArity == 1) return as_number(f(N::from(x[0])));
  else if constexpr (kArity == 2) return as_number(f(N::from(x[0]), N::from(x[1])));
  else if constexpr (kArity == 3) return as_number(f(N::from(x[0]), N::from(x[1]), N::from(x[2])));
  else return as_number(f(N::from(x[0]), N::from(x[1]), N::from(x[2]), N::from(x[3])));
}

// The number types with which a row of the class is instantiated.
enum Class { num, flt, integer, truth, any };
#define KRN_CLASS_num num
#define KRN_CLASS_flt flt
#define KRN_CLASS_int integer
#define KRN_CLASS_bool truth
#define KRN_CLASS_any any

template <Class kClass, int kArity, class F>
Number instantiate(DType in, F f, const Number* x) {
  if constexpr (kClass == num || kClass == flt || kClass == any)
    if (is_float(in))
      return compute_dtype(in) == DType::k_f64 ? call<FloatNumber<double>, kArity>(f, x) : call<FloatNumber<float>, kArity>(f, x);
  if constexpr (kClass == num || kClass == integer || kClass == any)
    if (!is_float(in)) return call<IntNumber, kArity>(f, x);
  if constexpr (kClass == truth) return call<BoolNumber, kArity>(f, x);
  return {};
}

Number cast_row(DType in, DType out, Number x) {
  if (is_float(out)) return {is_float(in) ? x.d : static_cast<double>(x.i), 0};
  if (!is_float(in)) return {0, x.i};
  return {0, out == DType::k_bool ? x.d != 0 : static_cast<int64_t>(x.d)};
}

}  // namespace

Number apply_row(OpCode row, DType in, DType out, const Number* x) {
  if (row == OpCode::k_cast) return cast_row(in, out, x[0]);
  if (row == OpCode::k_select) return x[0].i ? x[1] : x[2];
  switch (row) {
#define KRN_SCALAR(id, name, arity, dtypes, result, domain, tolerance)                                             \
  case OpCode::k_##name:                                                                                           \
    if constexpr (id != static_cast<int>(OpCode::k_select) && id != static_cast<int>(OpCode::k_cast))              \
      return instantiate<KRN_CLASS_##dtypes, arity>(in, [](auto... v) { return rows::row_##name(v...); }, x);      \
    break;
#define KRN_REDUCE(...)
#define KRN_MOVE(...)
#define KRN_FACTORY(...)
#define KRN_COMPOSITE(...)
#include "abi/ops.def"
#undef KRN_SCALAR
#undef KRN_REDUCE
#undef KRN_MOVE
#undef KRN_FACTORY
#undef KRN_COMPOSITE
    default: break;
  }
  return {};
}

bool within_row(OpCode row, DType dtype, const Number& want, double got) {
  const double exact = want.d;
  if (std::isnan(exact) || std::isnan(got)) return std::isnan(exact) && std::isnan(got);
  const int ulps = row_meaning(row).tolerance_ulp;
  const double rounded = round_once(dtype, exact);
  // Of a zero and its negative either is the least: LibTorch's vectors, its tails and a GPU's instruction pick differently.
  const bool picks = row == OpCode::k_minimum || row == OpCode::k_maximum || row == OpCode::k_clamp;
  if (picks && rounded == 0) return got == 0;
  if (got == rounded) return ulps > 0 || got != 0 || std::signbit(got) == std::signbit(rounded);
  if (ulps == 0 || std::isinf(exact)) return false;
  // One ulp of the compute dtype at the exact value; in f64 the formula itself is that far from the truth.
  const DType compute = compute_dtype(dtype);
  const int precision = compute == DType::k_f64 ? 53 : 24, least = compute == DType::k_f64 ? -1022 : -126;
  const double ulp = std::ldexp(1.0, (exact == 0 ? least : std::max(std::ilogb(exact), least)) - precision + 1);
  const double room = std::max(ulp * ulps, std::isinf(want.room) ? 0 : want.room) * (compute == DType::k_f64 ? 2 : 1);
  return round_once(dtype, exact - room) <= got && got <= round_once(dtype, exact + room);
}

}  // namespace keirin::conformance
