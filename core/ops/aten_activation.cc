// SPDX-License-Identifier: Apache-2.0
//
// Recipes of the activations. Their numbers (slopes, bounds) run in the compute dtype, as in ATen.
#include "core/ops/lowering.h"

namespace keirin {
namespace {

using Operand = Lowering::Operand;

template <OpCode kCode>
Values plain(Lowering& w) {
  return {w.row(kCode, {w.tensor("self")})};
}

ValueId with_numbers(Lowering& w, OpCode code, ValueId x, std::initializer_list<double> numbers) {
  Operand self = w.as_operand(x);
  DType d = w.dtype_of(x);
  auto at = [&](size_t i) { return Lowering::number(numbers.begin()[i]); };
  switch (numbers.size()) {
    case 1:
      return w.pointwise(code, {self, at(0)}, d);
    case 2:
      return w.pointwise(code, {self, at(0), at(1)}, d);
    default:
      return w.pointwise(code, {self, at(0), at(1), at(2)}, d);
  }
}

Values gelu(Lowering& w) {
  return {w.row(w.word("approximate", "none") == "tanh" ? OpCode::k_gelu_tanh : OpCode::k_gelu, {w.tensor("self")})};
}

Values leaky_relu(Lowering& w) {
  return {with_numbers(w, OpCode::k_leaky_relu, w.tensor("self"), {w.real("negative_slope", 0.01)})};
}

Values elu(Lowering& w) {
  return {with_numbers(w, OpCode::k_elu, w.tensor("self"),
                       {w.real("alpha", 1), w.real("scale", 1), w.real("input_scale", 1)})};
}

Values selu(Lowering& w) {
  return {with_numbers(w, OpCode::k_elu, w.tensor("self"),
                       {1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1})};
}

Values celu(Lowering& w) {
  double alpha = w.real("alpha", 1);
  return {with_numbers(w, OpCode::k_elu, w.tensor("self"), {alpha, 1, 1 / alpha})};
}

Values softplus(Lowering& w) {
  return {with_numbers(w, OpCode::k_softplus, w.tensor("self"), {w.real("beta", 1), w.real("threshold", 20)})};
}

ValueId bounded(Lowering& w, double low, double high) {
  ValueId x = w.tensor("self");
  return w.pointwise(OpCode::k_clamp, {w.as_operand(x), Lowering::number(low), Lowering::number(high)}, w.dtype_of(x),
                     false);
}

Values hardtanh(Lowering& w) { return {bounded(w, w.real("min_val", -1), w.real("max_val", 1))}; }
Values relu6(Lowering& w) { return {bounded(w, 0, 6)}; }

Values threshold(Lowering& w) {
  ValueId x = w.tensor("self");
  ValueId low = w.with_number(OpCode::k_le, x, w.real("threshold"));
  return {w.select(low, w.operand("value"), w.as_operand(x), w.dtype_of(x))};
}

Values prelu(Lowering& w) {
  ValueId x = w.tensor("self"), slope = w.tensor("weight");
  if (w.rank(slope) == 1 && w.rank(x) >= 2) {  // one slope a channel
    Dims s(w.rank(x), 1);
    s[1] = w.sizes(slope)[0];
    slope = w.reshape(slope, s);
  }
  ValueId positive = w.with_number(OpCode::k_gt, x, 0);
  ValueId scaled = w.pointwise(OpCode::k_mul, {w.as_operand(slope), w.as_operand(x)}, w.dtype_of(x));
  return {w.select(positive, w.as_operand(x), w.as_operand(scaled), w.dtype_of(x))};
}

Values glu(Lowering& w) {
  ValueId x = w.tensor("self");
  int64_t dim = w.axis(w.integer("dim", -1), w.rank(x));
  if (w.rank(x) == 0 || w.sizes(x)[dim] % 2 != 0) w.decline("glu of an odd size");
  if (w.failed()) return {};
  int64_t n = w.sizes(x)[dim], half = n / 2;
  DType d = w.dtype_of(x), compute = compute_dtype(d);
  ValueId a = w.cast(w.slice(x, dim, 0, half), compute), b = w.cast(w.slice(x, dim, half, n), compute);
  return {w.cast(w.binary(OpCode::k_mul, a, w.row(OpCode::k_sigmoid, {b})), d)};
}

Values identity_in_eval(Lowering& w) {
  if (w.flag("train") && w.real("p") != 0) w.decline("dropout in training draws random numbers");
  return {w.tensor(w.given("self") ? "self" : "input")};  // dropout_ calls it self
}

Values native_dropout(Lowering& w) {
  bool train = !w.given("train") || w.flag("train");
  if (train && w.real("p") != 0) w.decline("dropout in training draws random numbers");
  return {w.tensor("input"), kNone};
}

using C = OpCode;
constexpr RecipeRow kRecipes[] = {
    {"aten::relu", plain<C::k_relu>},
    {"aten::silu", plain<C::k_silu>},
    {"aten::mish", plain<C::k_mish>},
    {"aten::hardsigmoid", plain<C::k_hardsigmoid>},
    {"aten::hardswish", plain<C::k_hardswish>},
    {"aten::log_sigmoid", plain<C::k_log_sigmoid>},
    {"aten::gelu", gelu},
    {"aten::leaky_relu", leaky_relu},
    {"aten::elu", elu},
    {"aten::selu", selu},
    {"aten::celu", celu},
    {"aten::softplus", softplus},
    {"aten::hardtanh", hardtanh},
    {"aten::relu6", relu6},
    {"aten::threshold", threshold},
    {"aten::prelu", prelu},
    {"aten::_prelu_kernel", prelu},
    {"aten::glu", glu},
    {"aten::dropout", identity_in_eval},
    {"aten::feature_dropout", identity_in_eval},
    {"aten::alpha_dropout", identity_in_eval},
    {"aten::feature_alpha_dropout", identity_in_eval},
    {"aten::native_dropout", native_dropout},
};

}  // namespace

std::span<const RecipeRow> activation_recipes() { return kRecipes; }

}  // namespace keirin
