// SPDX-License-Identifier: Apache-2.0
//
// Recipes of arithmetic, comparison, logic and selection. What ATen does in one kernel with several roundings inside is
// spelled in the compute dtype with explicit casts; a single row needs none.
#include <cmath>
#include <limits>

#include "core/ops/lowering.h"

namespace keirin {
namespace {

using Operand = Lowering::Operand;

DType float_result(DType d) { return is_float(d) ? d : DType::k_f32; }

template <OpCode kCode>
Values unary(Lowering& w) {
  ValueId x = w.tensor("self");
  return {w.row(kCode, {x})};
}

template <OpCode kCode>
Values unary_float(Lowering& w) {
  ValueId x = w.tensor("self");
  return {w.row(kCode, {w.cast(x, float_result(w.dtype_of(x)))})};
}

// floor, ceil, trunc, round: the identity on integers.
template <OpCode kCode>
Values rounding(Lowering& w) {
  ValueId x = w.tensor("self");
  return {is_float(w.dtype_of(x)) ? w.row(kCode, {x}) : x};
}

template <OpCode kCode>
Values arithmetic(Lowering& w) {
  Operand a = w.operand("self"), b = w.operand("other");
  return {w.pointwise(kCode, {a, b}, w.result_type({a, b}))};
}

// a + alpha * b and its relatives, as one kernel of ATen's: the product is not rounded to a half-precision dtype.
ValueId scaled(Lowering& w, OpCode code, Operand a, Operand b, const Operand& alpha, bool scale_b) {
  DType dtype = w.result_type({a, b});
  if (alpha.as_double() == 1) return w.pointwise(code, {a, b}, dtype);
  DType compute = compute_dtype(dtype);
  Operand& target = scale_b ? b : a;
  if (target.is_number()) {
    target = target.is_integer && alpha.is_integer ? Lowering::number(target.i * alpha.i)
                                                   : Lowering::number(target.as_double() * alpha.as_double());
  } else {
    target = w.as_operand(w.pointwise(OpCode::k_mul, {target, alpha}, compute));
  }
  return w.cast(w.pointwise(code, {a, b}, compute), dtype);
}

Operand alpha_of(Lowering& w) { return w.given("alpha") ? w.operand("alpha") : Lowering::number(int64_t{1}); }

Values add(Lowering& w) {
  Operand a = w.operand("self"), b = w.operand("other");
  if (w.result_type({a, b}) == DType::k_bool) return {w.pointwise(OpCode::k_logical_or, {a, b}, DType::k_bool)};
  return {scaled(w, OpCode::k_add, a, b, alpha_of(w), true)};
}

Values sub(Lowering& w) { return {scaled(w, OpCode::k_sub, w.operand("self"), w.operand("other"), alpha_of(w), true)}; }
Values rsub(Lowering& w) {
  return {scaled(w, OpCode::k_sub, w.operand("other"), w.operand("self"), alpha_of(w), true)};
}

Values mul(Lowering& w) {
  Operand a = w.operand("self"), b = w.operand("other");
  DType dtype = w.result_type({a, b});
  return {w.pointwise(dtype == DType::k_bool ? OpCode::k_logical_and : OpCode::k_mul, {a, b}, dtype)};
}

// a / b in `dtype`, as the device's kernels of LibTorch compute it.
ValueId quotient_of(Lowering& w, const Operand& a, const Operand& b, DType dtype) {
  if (!b.is_number() || a.is_number() || !w.by_reciprocal()) return w.pointwise(OpCode::k_div, {a, b}, dtype);
  int exponent = 0;
  if (std::fabs(std::frexp(b.as_double(), &exponent)) == 0.5 && std::abs(exponent) < 100)  // a power of two, whose reciprocal is exact
    return w.pointwise(OpCode::k_mul, {a, Lowering::number(1 / b.as_double())}, dtype);
  const DType compute = compute_dtype(dtype);
  const ValueId x = w.cast(a.id, compute), reciprocal = w.row(OpCode::k_reciprocal, {w.full(b, compute, {})});
  return w.cast(w.row(OpCode::k_mul, {x, w.expand(reciprocal, w.sizes(x))}), dtype);
}

Values div(Lowering& w) {
  Operand a = w.operand("self"), b = w.operand("other");
  DType dtype = float_result(w.result_type({a, b}));
  std::string mode = w.word("rounding_mode");
  if (mode.empty()) return {quotient_of(w, a, b, dtype)};
  if (mode != "trunc" || !is_float(w.result_type({a, b}))) w.decline("division with rounding mode " + mode);
  return {w.cast(w.row(OpCode::k_trunc, {quotient_of(w, a, b, compute_dtype(dtype))}), dtype)};
}

Values fmod(Lowering& w) {
  Operand a = w.operand("self"), b = w.operand("other");
  DType dtype = w.result_type({a, b});
  if (!is_float(dtype)) w.decline("fmod of integers");
  return {w.pointwise(OpCode::k_fmod, {a, b}, dtype)};
}

// The remainder with the divisor's sign: fmod, moved by one divisor where the signs differ.
Values remainder(Lowering& w) {
  Operand a = w.operand("self"), b = w.operand("other");
  DType dtype = w.result_type({a, b}), compute = compute_dtype(dtype);
  if (!is_float(dtype)) w.decline("remainder of integers");
  ValueId mod = w.pointwise(OpCode::k_fmod, {a, b}, compute);
  ValueId divisor = w.expand(b.is_number() ? w.full(b, compute, {}) : w.cast(b.id, compute), w.sizes(mod));
  ValueId signs_differ =
      w.binary(OpCode::k_ne, w.with_number(OpCode::k_lt, divisor, 0), w.with_number(OpCode::k_lt, mod, 0));
  ValueId move = w.binary(OpCode::k_logical_and, w.with_number(OpCode::k_ne, mod, 0), signs_differ);
  return {w.cast(w.row(OpCode::k_select, {move, w.binary(OpCode::k_add, mod, divisor), mod}), dtype)};
}

// Integers divided by a number, rounded down. The quotient in fp64 is near; what is left over says by how much it is off, for large ones
// with another quotient, then with one more or less.
Values floor_divide(Lowering& w) {
  const Operand a = w.operand("self"), b = w.operand("other");
  const DType dtype = w.result_type({a, b});
  const bool wide = dtype == DType::k_i64, known = !a.is_number() && b.is_number() && b.is_integer && (wide || dtype == DType::k_i32);
  if (!known || b.i < 2 || b.i > (wide ? int64_t{1} << 50 : std::numeric_limits<int32_t>::max()) || w.dtype_of(a.id) != dtype)
    w.decline("division that rounds down, of other than integers by a number");
  if (w.failed()) return {};
  const ValueId x = w.cast(a.id, DType::k_i64), divisor = w.full(b, DType::k_i64, w.sizes(x));
  const auto near = [&](ValueId v) {
    const ValueId quotient = w.with_number(OpCode::k_div, w.cast(v, DType::k_f64), static_cast<double>(b.i));
    return w.cast(w.row(OpCode::k_floor, {quotient}), DType::k_i64);
  };
  const auto left_of = [&](ValueId quotient) { return w.binary(OpCode::k_sub, x, w.binary(OpCode::k_mul, quotient, divisor)); };
  ValueId quotient = near(x);
  if (wide) quotient = w.binary(OpCode::k_add, quotient, near(left_of(quotient)));
  const ValueId left = left_of(quotient);
  quotient = w.binary(OpCode::k_add, quotient, w.cast(w.binary(OpCode::k_ge, left, divisor), DType::k_i64));
  quotient = w.binary(OpCode::k_sub, quotient, w.cast(w.with_number(OpCode::k_lt, left, 0), DType::k_i64));
  return {w.cast(quotient, dtype)};
}

// The exponents that ATen computes without pow.
ValueId power_by_number(Lowering& w, ValueId x, const Operand& exponent, DType dtype) {
  DType compute = compute_dtype(dtype);
  double e = exponent.as_double();
  x = w.cast(x, compute);
  auto square = [&] { return w.binary(OpCode::k_mul, x, x); };
  if (e == 0) return w.full(Lowering::number(int64_t{1}), compute, w.sizes(x));
  if (e == 1) return x;
  if (e == 2) return square();
  if (e == 3) return w.binary(OpCode::k_mul, square(), x);
  if (!is_float(dtype)) w.decline("integer power");
  if (e == 0.5) return w.row(OpCode::k_sqrt, {x});
  if (e == -0.5) return w.row(OpCode::k_rsqrt, {x});
  if (e == -1) return w.row(OpCode::k_reciprocal, {x});
  if (e == -2) return w.row(OpCode::k_reciprocal, {square()});
  return w.with_number(OpCode::k_pow, x, e);
}

Values pow(Lowering& w) {
  Operand a = w.operand("self"), b = w.operand("exponent");
  DType dtype = w.result_type({a, b});
  if (!a.is_number() && b.is_number()) return {w.cast(power_by_number(w, a.id, b, dtype), dtype)};
  if (!is_float(dtype)) w.decline("integer power");
  return {w.pointwise(OpCode::k_pow, {a, b}, dtype)};
}

Values square(Lowering& w) {
  ValueId x = w.tensor("self");
  return {w.binary(OpCode::k_mul, x, x)};
}

template <OpCode kCode>
Values compare(Lowering& w) {
  Operand a = w.operand("self"), b = w.operand("other");
  DType dtype = w.result_type({a, b});
  bool ordered = kCode != OpCode::k_eq && kCode != OpCode::k_ne;
  if (dtype == DType::k_bool && ordered) dtype = DType::k_u8;
  return {w.pointwise(kCode, {a, b}, dtype, false)};
}

template <OpCode kCode>
Values logical(Lowering& w) {
  ValueId a = w.to_bool(w.tensor("self")), b = w.to_bool(w.tensor("other"));
  return {w.pointwise(kCode, {w.as_operand(a), w.as_operand(b)}, DType::k_bool)};
}

Values logical_not(Lowering& w) { return {w.row(OpCode::k_logical_not, {w.to_bool(w.tensor("self"))})}; }

template <OpCode kBits, OpCode kTruth>
Values bitwise(Lowering& w) {
  Operand a = w.operand("self"), b = w.operand("other");
  DType dtype = w.result_type({a, b});
  return {w.pointwise(dtype == DType::k_bool ? kTruth : kBits, {a, b}, dtype)};
}

Values bitwise_not(Lowering& w) {
  ValueId x = w.tensor("self");
  return {w.row(w.dtype_of(x) == DType::k_bool ? OpCode::k_logical_not : OpCode::k_bit_not, {x})};
}

template <OpCode kCode, OpCode kTruth>
Values extremum(Lowering& w) {
  Operand a = w.operand("self"), b = w.operand("other");
  DType dtype = w.result_type({a, b});
  return {w.pointwise(dtype == DType::k_bool ? kTruth : kCode, {a, b}, dtype, false)};
}

ValueId clamped(Lowering& w, const Operand& x, const std::optional<Operand>& low, const std::optional<Operand>& high) {
  DType dtype = w.result_type({x, low.value_or(x), high.value_or(x)});
  if (low && high) return w.pointwise(OpCode::k_clamp, {x, *low, *high}, dtype, false);
  if (low) return w.pointwise(OpCode::k_maximum, {x, *low}, dtype, false);
  if (high) return w.pointwise(OpCode::k_minimum, {x, *high}, dtype, false);
  return x.id;
}

Values clamp(Lowering& w) {
  auto bound = [&](const char* name) { return w.given(name) ? std::optional(w.operand(name)) : std::nullopt; };
  return {clamped(w, w.operand("self"), bound("min"), bound("max"))};
}

Values where(Lowering& w) {
  ValueId condition = w.to_bool(w.tensor("condition"));
  Operand a = w.operand("self"), b = w.operand("other");
  return {w.select(condition, a, b, w.result_type({a, b}))};
}

Values masked_fill(Lowering& w) {
  ValueId x = w.tensor("self"), mask = w.tensor("mask");
  return {w.select(mask, w.operand("value"), w.as_operand(x), w.dtype_of(x))};
}

// self + value * (t1 op t2), rounded once.
template <OpCode kCode>
Values add_combined(Lowering& w) {
  Operand x = w.operand("self"), a = w.operand("tensor1"), b = w.operand("tensor2");
  DType dtype = w.result_type({x, a, b}), compute = compute_dtype(dtype);
  if (!is_float(dtype)) w.decline("addcmul or addcdiv of integers");
  ValueId term = w.pointwise(kCode, {a, b}, compute);
  double value = w.real("value", 1);
  if (value != 1) term = w.with_number(OpCode::k_mul, term, value);
  return {w.cast(w.pointwise(OpCode::k_add, {x, w.as_operand(term)}, compute), dtype)};
}

Values lerp(Lowering& w) {
  Operand start = w.operand("self"), end = w.operand("end"), weight = w.operand("weight");
  DType dtype = w.dtype_of(start.id), compute = compute_dtype(dtype);
  Operand difference = w.as_operand(w.pointwise(OpCode::k_sub, {end, start}, compute));
  // ATen's two forms meet both ends exactly.
  auto from_start = [&] {
    return w.pointwise(OpCode::k_add, {start, w.as_operand(w.pointwise(OpCode::k_mul, {weight, difference}, compute))},
                       compute);
  };
  auto from_end = [&] {
    Operand rest = weight.is_number()
                       ? Lowering::number(1 - weight.as_double())
                       : w.as_operand(w.pointwise(OpCode::k_sub, {Lowering::number(1.0), weight}, compute));
    return w.pointwise(OpCode::k_sub, {end, w.as_operand(w.pointwise(OpCode::k_mul, {difference, rest}, compute))},
                       compute);
  };
  if (weight.is_number()) return {w.cast(std::abs(weight.as_double()) < 0.5 ? from_start() : from_end(), dtype)};
  ValueId near = w.with_number(OpCode::k_lt, w.row(OpCode::k_abs, {w.cast(weight.id, compute)}), 0.5);
  return {w.cast(w.select(near, w.as_operand(from_start()), w.as_operand(from_end()), compute), dtype)};
}

Values isnan(Lowering& w) {
  ValueId x = w.tensor("self");
  if (is_float(w.dtype_of(x))) return {w.row(OpCode::k_is_nan, {x})};
  return {w.full(Lowering::number(int64_t{0}), DType::k_bool, w.sizes(x))};
}

template <OpCode kCode>
Values against_infinity(Lowering& w) {
  ValueId x = w.tensor("self");
  if (!is_float(w.dtype_of(x))) w.decline("infinity of integers");
  return {w.with_number(kCode, w.row(OpCode::k_abs, {x}), std::numeric_limits<double>::infinity())};
}

double greatest(DType d) {
  switch (d) {
    case DType::k_f16:
      return 65504.0;
    case DType::k_bf16:
      return 3.3895313892515355e38;
    case DType::k_f32:
      return std::numeric_limits<float>::max();
    default:
      return std::numeric_limits<double>::max();
  }
}

Values nan_to_num(Lowering& w) {
  ValueId x = w.tensor("self");
  DType d = w.dtype_of(x);
  if (!is_float(d)) return {x};
  const double infinity = std::numeric_limits<double>::infinity();
  auto replace = [&](ValueId condition, double value) {
    return w.select(condition, Lowering::number(value), w.as_operand(x), d);
  };
  x = replace(w.row(OpCode::k_is_nan, {x}), w.real("nan", 0));
  x = replace(w.with_number(OpCode::k_eq, x, infinity), w.real("posinf", greatest(d)));
  return {replace(w.with_number(OpCode::k_eq, x, -infinity), w.real("neginf", -greatest(d)))};
}

using C = OpCode;
constexpr RecipeRow kRecipes[] = {
    {"aten::neg", unary<C::k_neg>},
    {"aten::negative", unary<C::k_neg>},
    {"aten::abs", unary<C::k_abs>},
    {"aten::sign", unary<C::k_sign>},
    {"aten::sgn", unary<C::k_sign>},
    {"aten::square", square},
    {"aten::reciprocal", unary_float<C::k_reciprocal>},
    {"aten::sqrt", unary_float<C::k_sqrt>},
    {"aten::rsqrt", unary_float<C::k_rsqrt>},
    {"aten::exp", unary_float<C::k_exp>},
    {"aten::exp2", unary_float<C::k_exp2>},
    {"aten::expm1", unary_float<C::k_expm1>},
    {"aten::log", unary_float<C::k_log>},
    {"aten::log1p", unary_float<C::k_log1p>},
    {"aten::log2", unary_float<C::k_log2>},
    {"aten::sin", unary_float<C::k_sin>},
    {"aten::cos", unary_float<C::k_cos>},
    {"aten::tanh", unary_float<C::k_tanh>},
    {"aten::erf", unary_float<C::k_erf>},
    {"aten::sigmoid", unary_float<C::k_sigmoid>},
    {"aten::floor", rounding<C::k_floor>},
    {"aten::ceil", rounding<C::k_ceil>},
    {"aten::trunc", rounding<C::k_trunc>},
    {"aten::fix", rounding<C::k_trunc>},
    {"aten::round", rounding<C::k_round>},
    {"aten::add.Tensor", add},
    {"aten::add.Scalar", add},
    {"aten::sub.Tensor", sub},
    {"aten::sub.Scalar", sub},
    {"aten::subtract.Tensor", sub},
    {"aten::rsub.Tensor", rsub},
    {"aten::rsub.Scalar", rsub},
    {"aten::mul.Tensor", mul},
    {"aten::mul.Scalar", mul},
    {"aten::multiply.Tensor", mul},
    {"aten::div.Tensor", div},
    {"aten::div.Scalar", div},
    {"aten::div.Tensor_mode", div},
    {"aten::div.Scalar_mode", div},
    {"aten::divide.Tensor", div},
    {"aten::true_divide.Tensor", div},
    {"aten::fmod.Tensor", fmod},
    {"aten::fmod.Scalar", fmod},
    {"aten::floor_divide", floor_divide},
    {"aten::floor_divide.Scalar", floor_divide},
    {"aten::remainder.Tensor", remainder},
    {"aten::remainder.Scalar", remainder},
    {"aten::pow.Tensor_Scalar", pow},
    {"aten::pow.Tensor_Tensor", pow},
    {"aten::pow.Scalar", pow},
    {"aten::eq.Tensor", compare<C::k_eq>},
    {"aten::eq.Scalar", compare<C::k_eq>},
    {"aten::ne.Tensor", compare<C::k_ne>},
    {"aten::ne.Scalar", compare<C::k_ne>},
    {"aten::lt.Tensor", compare<C::k_lt>},
    {"aten::lt.Scalar", compare<C::k_lt>},
    {"aten::le.Tensor", compare<C::k_le>},
    {"aten::le.Scalar", compare<C::k_le>},
    {"aten::gt.Tensor", compare<C::k_gt>},
    {"aten::gt.Scalar", compare<C::k_gt>},
    {"aten::ge.Tensor", compare<C::k_ge>},
    {"aten::ge.Scalar", compare<C::k_ge>},
    {"aten::logical_and", logical<C::k_logical_and>},
    {"aten::logical_or", logical<C::k_logical_or>},
    {"aten::logical_xor", logical<C::k_logical_xor>},
    {"aten::logical_not", logical_not},
    {"aten::bitwise_not", bitwise_not},
#define KRN_BITWISE(name, bits, truth)                                                                              \
  {"aten::bitwise_" name ".Tensor", bitwise<bits, truth>}, {"aten::bitwise_" name ".Scalar", bitwise<bits, truth>}, \
      {"aten::bitwise_" name ".Scalar_Tensor", bitwise<bits, truth>},                                               \
      {"aten::__" name "__.Tensor", bitwise<bits, truth>}, {"aten::__" name "__.Scalar", bitwise<bits, truth>},
    KRN_BITWISE("and", C::k_bit_and, C::k_logical_and) KRN_BITWISE("or", C::k_bit_or, C::k_logical_or)
        KRN_BITWISE("xor", C::k_bit_xor, C::k_logical_xor)
#undef KRN_BITWISE
            {"aten::maximum", extremum<C::k_maximum, C::k_logical_or>},
    {"aten::max.other", extremum<C::k_maximum, C::k_logical_or>},
    {"aten::minimum", extremum<C::k_minimum, C::k_logical_and>},
    {"aten::min.other", extremum<C::k_minimum, C::k_logical_and>},
    {"aten::clamp", clamp},
    {"aten::clamp.Tensor", clamp},
    {"aten::clamp_min", clamp},
    {"aten::clamp_min.Tensor", clamp},
    {"aten::clamp_max", clamp},
    {"aten::clamp_max.Tensor", clamp},
    {"aten::clip", clamp},
    {"aten::clip.Tensor", clamp},
    {"aten::where.self", where},
    {"aten::where.ScalarSelf", where},
    {"aten::where.ScalarOther", where},
    {"aten::where.Scalar", where},
    {"aten::masked_fill.Scalar", masked_fill},
    {"aten::masked_fill.Tensor", masked_fill},
    {"aten::addcmul", add_combined<C::k_mul>},
    {"aten::addcdiv", add_combined<C::k_div>},
    {"aten::lerp.Scalar", lerp},
    {"aten::lerp.Tensor", lerp},
    {"aten::isnan", isnan},
    {"aten::isinf", against_infinity<C::k_eq>},
    {"aten::isfinite", against_infinity<C::k_lt>},
    {"aten::nan_to_num", nan_to_num},
};

}  // namespace

std::span<const RecipeRow> pointwise_recipes() { return kRecipes; }

}  // namespace keirin
