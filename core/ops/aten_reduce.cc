// SPDX-License-Identifier: Apache-2.0
//
// Recipes of reductions, statistics, softmaxes and the running sum.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/ops/lowering.h"

namespace keirin {
namespace {

Dims dims_of(Lowering& w, ValueId x) {
  Dims dims = w.given("dim") ? w.ints("dim") : Dims{};
  return w.axes(dims, w.rank(x));
}

// sum and prod: integers and bools accumulate in i64 unless a dtype is asked for.
template <OpCode kCode>
Values accumulate(Lowering& w) {
  ValueId x = w.tensor("self");
  DType own = w.dtype_of(x);
  DType out = w.dtype("dtype").value_or(is_float(own) ? own : DType::k_i64);
  ValueId wide = w.cast(x, is_float(out) ? out : DType::k_i64);
  return {w.cast(w.reduce(kCode, wide, dims_of(w, x), w.flag("keepdim")), out)};
}

Values mean(Lowering& w) {
  ValueId x = w.tensor("self");
  x = w.cast(x, w.dtype("dtype").value_or(w.dtype_of(x)));
  return {w.reduce(OpCode::k_mean, x, dims_of(w, x), w.flag("keepdim"))};
}

ValueId extreme(Lowering& w, OpCode code, ValueId x, const Dims& dims, bool keepdim) {
  if (w.dtype_of(x) == DType::k_bool) code = code == OpCode::k_amax ? OpCode::k_any : OpCode::k_all;
  return w.reduce(code, x, dims, keepdim);
}

template <OpCode kCode>
Values extremum(Lowering& w) {
  ValueId x = w.tensor("self");
  return {extreme(w, kCode, x, dims_of(w, x), w.flag("keepdim"))};
}

// The position along one axis, or in row-major order over all of them.
ValueId position(Lowering& w, OpCode code, ValueId x, bool all, int64_t dim, bool keepdim) {
  if (w.dtype_of(x) == DType::k_bool) x = w.cast(x, DType::k_u8);
  Dims own = w.sizes(x);
  if (all || own.empty()) {
    ValueId flat = w.reshape(x, {w.type(x).num_elements()});
    ValueId at = w.reduce(code, flat, {0}, false);
    return keepdim ? w.reshape(at, Dims(own.size(), 1)) : at;
  }
  return w.reduce(code, x, {w.axis(dim, w.rank(x))}, keepdim);
}

template <OpCode kCode>
Values arg_extremum(Lowering& w) {
  ValueId x = w.tensor("self");
  return {position(w, kCode, x, !w.given("dim"), w.integer("dim"), w.flag("keepdim"))};
}

// max.dim: values and their positions.
template <OpCode kValue, OpCode kPosition>
Values extremum_with_position(Lowering& w) {
  ValueId x = w.tensor("self");
  int64_t dim = w.integer("dim");
  bool keepdim = w.flag("keepdim");
  return {extreme(w, kValue, x, w.axes({dim}, w.rank(x)), keepdim), position(w, kPosition, x, false, dim, keepdim)};
}

template <OpCode kCode>
Values truth(Lowering& w) {
  ValueId x = w.tensor("self");
  DType out = w.dtype_of(x) == DType::k_u8 ? DType::k_u8 : DType::k_bool;
  return {w.cast(w.reduce(kCode, w.to_bool(x), dims_of(w, x), w.flag("keepdim")), out)};
}

ValueId variance(Lowering& w, ValueId x, DType dtype, bool root) {
  double correction = 1;
  if (w.given("correction"))
    correction = w.real("correction");
  else if (w.given("unbiased"))
    correction = w.flag("unbiased") ? 1 : 0;
  ValueId v = w.row(
      OpCode::k_var, {w.cast(x, dtype)},
      {{AttrKey::k_dims, dims_of(w, x)}, {AttrKey::k_keepdim, w.flag("keepdim")}, {AttrKey::k_correction, correction}});
  return root ? w.row(OpCode::k_sqrt, {v}) : v;
}

template <bool kRoot>
Values var(Lowering& w) {
  ValueId x = w.tensor("self");
  DType d = w.dtype_of(x);
  return {w.cast(variance(w, x, kRoot ? compute_dtype(d) : d, kRoot), d)};
}

template <bool kRoot>
Values var_mean(Lowering& w) {
  ValueId x = w.tensor("self");
  ValueId m = w.reduce(OpCode::k_mean, x, dims_of(w, x), w.flag("keepdim"));
  return {var<kRoot>(w)[0], m};
}

ValueId norm_of(Lowering& w, double order) {
  ValueId x = w.tensor("self");
  DType out = w.dtype("dtype").value_or(w.dtype_of(x)), compute = compute_dtype(out);
  if (!is_float(out)) w.decline("norm of integers");
  x = w.cast(x, compute);
  Dims dims = dims_of(w, x);
  bool keepdim = w.flag("keepdim");
  ValueId norm = kNone;
  if (order == 2)
    norm = w.row(OpCode::k_sqrt, {w.reduce(OpCode::k_sum, w.binary(OpCode::k_mul, x, x), dims, keepdim)});
  else if (order == 1)
    norm = w.reduce(OpCode::k_sum, w.row(OpCode::k_abs, {x}), dims, keepdim);
  else if (order == std::numeric_limits<double>::infinity())
    norm = w.reduce(OpCode::k_amax, w.row(OpCode::k_abs, {x}), dims, keepdim);
  else
    w.decline("norm of order " + std::to_string(order));
  return w.cast(norm, out);
}

Values vector_norm(Lowering& w) { return {norm_of(w, w.real("ord", 2))}; }
Values norm(Lowering& w) { return {norm_of(w, w.real("p", 2))}; }

Values logsumexp(Lowering& w) {
  ValueId x = w.tensor("self");
  DType out = w.dtype_of(x);
  if (!is_float(out)) w.decline("logsumexp of integers");
  x = w.cast(x, compute_dtype(out));
  Dims dims = dims_of(w, x), own = w.sizes(x);
  ValueId top = w.reduce(OpCode::k_amax, x, dims, true);
  // An infinite maximum would make inf - inf.
  ValueId infinite = w.with_number(OpCode::k_eq, w.row(OpCode::k_abs, {top}), std::numeric_limits<double>::infinity());
  top = w.select(infinite, Lowering::number(0.0), w.as_operand(top), w.dtype_of(top));
  ValueId terms = w.row(OpCode::k_exp, {w.binary(OpCode::k_sub, x, w.expand(top, own))});
  ValueId log = w.row(OpCode::k_log, {w.reduce(OpCode::k_sum, terms, dims, true)});
  ValueId sum = w.binary(OpCode::k_add, log, top);
  if (!w.flag("keepdim")) {
    Dims kept;
    for (size_t i = 0; i < own.size(); ++i)
      if (std::find(dims.begin(), dims.end(), static_cast<int64_t>(i)) == dims.end()) kept.push_back(own[i]);
    sum = w.reshape(sum, kept);
  }
  return {w.cast(sum, out)};
}

template <OpCode kCode>
Values softmax(Lowering& w) {
  ValueId x = w.tensor("self");
  DType out = w.dtype("dtype").value_or(w.flag("half_to_float") ? DType::k_f32 : w.dtype_of(x));
  if (w.rank(x) == 0) w.decline("softmax of a 0-d tensor");
  return {w.row(kCode, {w.cast(x, out)}, {{AttrKey::k_dim, w.axis(w.integer("dim"), w.rank(x))}})};
}

Values cumsum(Lowering& w) {
  ValueId x = w.tensor("self");
  DType own = w.dtype_of(x);
  DType out = w.dtype("dtype").value_or(is_float(own) ? own : DType::k_i64);
  if (w.rank(x) == 0) return {w.cast(x, out)};
  if (out == DType::k_bool) w.decline("cumsum to bool");
  return {w.row(OpCode::k_cumsum, {w.cast(x, out)}, {{AttrKey::k_dim, w.axis(w.integer("dim"), w.rank(x))}})};
}

Values count_nonzero(Lowering& w) {
  ValueId x = w.tensor("self");
  return {w.reduce(OpCode::k_sum, w.cast(w.to_bool(x), DType::k_i64), dims_of(w, x), false)};
}

// How many numbers lie in each of `bins` equal parts of a range, of which the last one has both ends. Every number is compared with every
// part; what lies outside, or is none, is in no part.
Values histc(Lowering& w) {
  constexpr int64_t kMostTests = int64_t{1} << 22, kMostCounted = int64_t{1} << 24;  // the latter as far as f32 counts
  const ValueId given = w.tensor("self");
  const int64_t bins = w.integer("bins", 100), n = w.type(given).num_elements();
  const double low = w.operand("min").as_double(), high = w.operand("max").as_double();
  const DType dtype = w.dtype_of(given);
  if (dtype != DType::k_f32 && dtype != DType::k_f64) w.decline("histogram of other than f32 and f64");
  const auto is_held = [&](double v) { return dtype == DType::k_f64 || static_cast<double>(static_cast<float>(v)) == v; };
  if (!(low < high) || !is_held(low) || !is_held(high) || !is_held(high - low)) w.decline("histogram of a range that the data decides");
  if (bins < 1 || n > kMostTests / bins || n > kMostCounted) w.decline("histogram of many numbers or parts");
  if (w.failed()) return {};
  const ValueId x = w.reshape(given, {n});
  const ValueId part = w.row(OpCode::k_trunc, {w.with_number(
      OpCode::k_div, w.with_number(OpCode::k_mul, w.with_number(OpCode::k_sub, x, low), static_cast<double>(bins)), high - low)});
  const ValueId inside = w.binary(OpCode::k_logical_and, w.with_number(OpCode::k_ge, x, low), w.with_number(OpCode::k_le, x, high));
  const Dims tests{bins, n};
  const ValueId last = w.with_number(OpCode::k_minimum, part, static_cast<double>(bins - 1));
  const ValueId each = w.expand(w.cast(w.reshape(w.iota(0, bins), {bins, 1}), dtype), tests);
  const ValueId is_there = w.binary(OpCode::k_logical_and, w.binary(OpCode::k_eq, w.expand(w.reshape(last, {1, n}), tests), each),
                                    w.expand(w.reshape(inside, {1, n}), tests));
  return {w.reduce(OpCode::k_sum, w.cast(is_there, dtype), {1}, false)};
}

using C = OpCode;
constexpr RecipeRow kRecipes[] = {
    {"aten::sum", accumulate<C::k_sum>},
    {"aten::sum.dim_IntList", accumulate<C::k_sum>},
    {"aten::prod", accumulate<C::k_prod>},
    {"aten::prod.dim_int", accumulate<C::k_prod>},
    {"aten::mean", mean},
    {"aten::mean.dim", mean},
    {"aten::amax", extremum<C::k_amax>},
    {"aten::amin", extremum<C::k_amin>},
    {"aten::max", extremum<C::k_amax>},
    {"aten::min", extremum<C::k_amin>},
    {"aten::max.dim", extremum_with_position<C::k_amax, C::k_argmax>},
    {"aten::min.dim", extremum_with_position<C::k_amin, C::k_argmin>},
    {"aten::argmax", arg_extremum<C::k_argmax>},
    {"aten::argmin", arg_extremum<C::k_argmin>},
    {"aten::any", truth<C::k_any>},
    {"aten::any.dim", truth<C::k_any>},
    {"aten::any.dims", truth<C::k_any>},
    {"aten::all", truth<C::k_all>},
    {"aten::all.dim", truth<C::k_all>},
    {"aten::all.dims", truth<C::k_all>},
    {"aten::var", var<false>},
    {"aten::var.dim", var<false>},
    {"aten::var.correction", var<false>},
    {"aten::std", var<true>},
    {"aten::std.dim", var<true>},
    {"aten::std.correction", var<true>},
    {"aten::var_mean.correction", var_mean<false>},
    {"aten::var_mean.dim", var_mean<false>},
    {"aten::var_mean", var_mean<false>},
    {"aten::std_mean.correction", var_mean<true>},
    {"aten::linalg_vector_norm", vector_norm},
    {"aten::norm.Scalar", norm},
    {"aten::norm.ScalarOpt_dim", norm},
    {"aten::logsumexp", logsumexp},
    {"aten::special_logsumexp", logsumexp},
    {"aten::softmax.int", softmax<C::k_softmax>},
    {"aten::_softmax", softmax<C::k_softmax>},
    {"aten::special_softmax", softmax<C::k_softmax>},
    {"aten::log_softmax.int", softmax<C::k_log_softmax>},
    {"aten::_log_softmax", softmax<C::k_log_softmax>},
    {"aten::special_log_softmax", softmax<C::k_log_softmax>},
    {"aten::cumsum", cumsum},
    {"aten::histc", histc},
    {"aten::count_nonzero", count_nonzero},
    {"aten::count_nonzero.dim_IntList", count_nonzero},
};

}  // namespace

std::span<const RecipeRow> reduce_recipes() { return kRecipes; }

}  // namespace keirin
