// SPDX-License-Identifier: Apache-2.0
//
// Recipes of what only training calls: derivatives as LibTorch names them, and layers that also answer what their derivative needs.
// Each is computed in the compute dtype and rounded once, as LibTorch's kernels do. Results that `output_mask` leaves out are computed
// here nevertheless: nobody reads them, and what nobody reads is dropped.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/ops/decompose.h"
#include "core/ops/lowering.h"

namespace keirin {
namespace {

using Operand = Lowering::Operand;
using C = OpCode;

// Arithmetic on values of one compute dtype that broadcast against each other and against numbers.
struct Formula {
  Lowering& w;
  DType dtype;

  ValueId in(ValueId v) const { return v == kNone ? kNone : w.cast(v, dtype); }
  ValueId of(C code, ValueId a) const { return w.row(code, {a}); }
  ValueId two(C code, const Operand& a, const Operand& b) const { return w.pointwise(code, {a, b}, dtype, false); }
  ValueId mul(ValueId a, ValueId b) const { return two(C::k_mul, w.as_operand(a), w.as_operand(b)); }
  ValueId mul(ValueId a, double b) const { return two(C::k_mul, w.as_operand(a), Lowering::number(b)); }
  ValueId add(ValueId a, ValueId b) const { return two(C::k_add, w.as_operand(a), w.as_operand(b)); }
  ValueId add(ValueId a, double b) const { return two(C::k_add, w.as_operand(a), Lowering::number(b)); }
  ValueId sub(ValueId a, ValueId b) const { return two(C::k_sub, w.as_operand(a), w.as_operand(b)); }
  ValueId sub(double a, ValueId b) const { return two(C::k_sub, Lowering::number(a), w.as_operand(b)); }
  ValueId div(ValueId a, ValueId b) const { return two(C::k_div, w.as_operand(a), w.as_operand(b)); }
  ValueId is(C code, ValueId a, double b) const { return w.with_number(code, a, b); }
  ValueId choose(ValueId condition, ValueId a, double b) const {
    return w.select(condition, w.as_operand(a), Lowering::number(b), dtype);
  }
};

Formula formula_of(Lowering& w, ValueId v) { return {w, compute_dtype(w.dtype_of(v))}; }

// ---- activations: the derivative times `grad_output`, of `self` or of what the activation answered

template <ValueId (*kSlope)(const Formula&, Lowering&, ValueId)>
Values times_slope(Lowering& w) {
  const ValueId grad = w.tensor("grad_output"), x = w.tensor(w.given("self") ? "self" : "output");
  if (w.failed()) return {};
  const Formula f = formula_of(w, x);
  return {w.cast(f.mul(f.in(grad), kSlope(f, w, f.in(x))), w.dtype_of(x))};
}

ValueId tanh_slope(const Formula& f, Lowering&, ValueId y) { return f.sub(1.0, f.mul(y, y)); }
ValueId sigmoid_slope(const Formula& f, Lowering&, ValueId y) { return f.mul(f.sub(1.0, y), y); }

ValueId silu_slope(const Formula& f, Lowering&, ValueId x) {
  const ValueId s = f.of(C::k_sigmoid, x);
  return f.mul(s, f.add(f.mul(x, f.sub(1.0, s)), 1.0));
}

ValueId gelu_slope(const Formula& f, Lowering& w, ValueId x) {
  if (w.word("approximate", "none") == "tanh") {
    constexpr double kBeta = std::numbers::sqrt2 * std::numbers::inv_sqrtpi, kKappa = 0.044715;
    const ValueId square = f.mul(x, x);
    const ValueId t = f.of(C::k_tanh, f.mul(f.mul(x, f.add(f.mul(square, kKappa), 1.0)), kBeta));
    const ValueId inner = f.mul(f.add(f.mul(square, 3 * kKappa), 1.0), kBeta);
    const ValueId right = f.mul(f.mul(f.mul(x, 0.5), f.sub(1.0, f.mul(t, t))), inner);
    return f.add(f.mul(f.add(t, 1.0), 0.5), right);
  }
  const ValueId cdf = f.mul(f.add(f.of(C::k_erf, f.mul(x, 1 / std::numbers::sqrt2)), 1.0), 0.5);
  const ValueId density = f.mul(f.of(C::k_exp, f.mul(f.mul(x, x), -0.5)), 0.5 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
  return f.add(cdf, f.mul(x, density));
}

// `grad_output` where the activation passes its argument on, `otherwise` times it elsewhere.
template <ValueId (*kPasses)(const Formula&, Lowering&, ValueId)>
Values gated(Lowering& w) {
  const ValueId grad = w.tensor("grad_output"), x = w.tensor("self");
  if (w.failed()) return {};
  const Formula f = formula_of(w, x);
  return {w.cast(f.choose(kPasses(f, w, f.in(x)), f.in(grad), 0), w.dtype_of(x))};
}

// Not its opposite: a NaN passes.
ValueId above_threshold(const Formula& f, Lowering& w, ValueId x) {
  return w.row(C::k_logical_not, {f.is(C::k_le, x, w.real("threshold"))});
}

ValueId inside_bounds(const Formula& f, Lowering& w, ValueId x) {
  return w.row(C::k_logical_and, {f.is(C::k_gt, x, w.real("min_val")), f.is(C::k_lt, x, w.real("max_val"))});
}

Values leaky_relu_backward(Lowering& w) {
  const ValueId grad = w.tensor("grad_output"), x = w.tensor("self");
  if (w.failed()) return {};
  const Formula f = formula_of(w, x);
  const ValueId g = f.in(grad);
  const ValueId scaled = f.mul(g, w.real("negative_slope"));
  return {w.cast(w.select(f.is(C::k_gt, f.in(x), 0), w.as_operand(g), w.as_operand(scaled), f.dtype), w.dtype_of(x))};
}

Values native_dropout_backward(Lowering& w) {
  const ValueId grad = w.tensor("grad_output"), mask = w.tensor("mask");
  if (w.failed()) return {};
  const Formula f = formula_of(w, grad);
  return {w.cast(f.mul(f.mul(f.in(grad), f.in(mask)), w.real("scale")), w.dtype_of(grad))};
}

// ---- softmaxes: of what they answered

template <bool kLog>
Values softmax_backward(Lowering& w) {
  const ValueId grad = w.tensor("grad_output"), out = w.tensor("output");
  if (w.failed()) return {};
  if (w.rank(out) == 0) return w.decline("softmax of a 0-d tensor"), Values{};
  const Formula f = formula_of(w, out);
  const ValueId g = f.in(grad), y = f.in(out);
  const Dims dim{w.axis(w.integer("dim"), w.rank(out))};
  const ValueId sum = w.reduce(C::k_sum, kLog ? g : f.mul(g, y), dim, true);
  const ValueId result = kLog ? f.sub(g, f.mul(f.of(C::k_exp, y), sum)) : f.mul(y, f.sub(g, sum));
  return {w.cast(result, w.dtype("input_dtype").value_or(w.dtype_of(out)))};
}

// A row of nothing but -inf answers zeros.
Values safe_softmax(Lowering& w) {
  const ValueId self = w.tensor("self");
  if (w.failed()) return {};
  if (w.rank(self) == 0) return w.decline("softmax of a 0-d tensor"), Values{};
  const DType out = w.dtype("dtype").value_or(w.dtype_of(self));
  const int64_t dim = w.axis(w.integer("dim"), w.rank(self));
  const ValueId x = w.cast(self, out);
  const ValueId masked = w.reduce(C::k_all, w.with_number(C::k_eq, x, -INFINITY), {dim}, true);
  return {w.select(masked, Lowering::number(0.0), w.as_operand(w.row(C::k_softmax, {x}, {{AttrKey::k_dim, dim}})), out)};
}

// ---- losses

Values mse_loss_backward(Lowering& w) {
  const ValueId grad = w.tensor("grad_output"), x = w.tensor("self"), target = w.tensor("target");
  if (w.failed()) return {};
  const Formula f = formula_of(w, x);
  const double count = static_cast<double>(w.type(x).num_elements());
  const double norm = w.integer("reduction", 1) == 1 ? 2 / count : 2;
  return {w.cast(f.mul(f.mul(f.sub(f.in(x), f.in(target)), norm), f.in(grad)), w.dtype_of(x))};
}

// Where rows count: all but those whose class is `ignore_index`. Their class is replaced by one that exists.
struct Classes {
  ValueId counts, index;
};

Classes classes_of(Lowering& w) {
  const ValueId x = w.tensor("self"), target = w.tensor("target");
  if (w.given("weight")) w.decline("a loss with weights of classes");
  if (w.integer("reduction", 1) == 0) w.decline("a loss that is not reduced");
  if (w.failed() || w.rank(x) != 2) return w.decline("a loss of another rank"), Classes{kNone, kNone};
  const ValueId index = w.cast(target, DType::k_i64);
  const ValueId counts =
      w.row(C::k_ne, {index, w.expand(w.full(Lowering::number(w.integer("ignore_index", -100)), DType::k_i64, {}), w.sizes(index))});
  return {counts, w.select(counts, w.as_operand(index), Lowering::number(int64_t{0}), DType::k_i64)};
}

Values nll_loss_forward(Lowering& w) {
  const Classes classes = classes_of(w);
  if (w.failed()) return {};
  const ValueId self = w.tensor("self");
  const Formula f = formula_of(w, self);
  const ValueId picked = w.row(C::k_gather, {f.in(self), w.unsqueeze(classes.index, 1)}, {{AttrKey::k_dim, int64_t{1}}});
  const ValueId rows = f.choose(classes.counts, w.reshape(picked, w.sizes(classes.index)), 0);
  const ValueId sum = f.of(C::k_neg, w.reduce(C::k_sum, rows, {0}, false));
  const ValueId total = w.reduce(C::k_sum, f.in(classes.counts), {0}, false);
  const DType out = w.dtype_of(self);
  return {w.cast(w.integer("reduction", 1) == 1 ? f.div(sum, total) : sum, out), w.cast(total, out)};
}

Values nll_loss_backward(Lowering& w) {
  const Classes classes = classes_of(w);
  if (w.failed()) return {};
  const ValueId self = w.tensor("self");
  const Formula f = formula_of(w, self);
  const Dims sizes = w.sizes(self);
  ValueId each = f.of(C::k_neg, f.in(w.tensor("grad_output")));
  if (w.integer("reduction", 1) == 1) each = f.div(each, f.in(w.tensor("total_weight")));
  const ValueId column = w.expand(w.unsqueeze(classes.index, 1), sizes);
  const ValueId hit = w.row(
      C::k_logical_and, {w.row(C::k_eq, {column, w.expand(w.iota(0, sizes[1]), sizes)}), w.expand(w.unsqueeze(classes.counts, 1), sizes)});
  return {w.cast(w.select(hit, w.as_operand(each), Lowering::number(0.0), f.dtype), w.dtype_of(self))};
}

// ---- norms

Dims axes_from(int64_t first, int64_t last) {
  Dims axes;
  for (int64_t i = first; i < last; ++i) axes.push_back(i);
  return axes;
}

double count_of(const Lowering& w, ValueId x, const Dims& axes) {
  const Dims sizes = w.sizes(x);
  double count = 1;
  for (const int64_t axis : axes) count *= static_cast<double>(sizes[axis]);
  return count;
}

struct Statistics {
  ValueId mean, variance, inverse;  // the axes kept; inverse: 1 / sqrt(variance + eps)
};

Statistics statistics_of(const Formula& f, ValueId x, const Dims& axes, double eps) {
  const ValueId variance = bodies::variance_of(f.w, x, axes, 0);
  return {bodies::mean_of(f.w, x, axes), variance, f.of(C::k_rsqrt, f.is(C::k_add, variance, eps))};
}

// As an autograd keeps them for the backward. With parameters in f32 an input of half precision has its statistics in f32; tracers say
// otherwise.
ValueId kept_statistic(const Formula& f, ValueId statistic, size_t result, ValueId input, ValueId parameter) {
  const bool mixed = parameter != kNone && f.w.dtype_of(parameter) != f.w.dtype_of(input);
  return f.w.cast(statistic, mixed ? f.dtype : f.w.hinted_dtype(result, f.dtype));
}

Values native_layer_norm(Lowering& w) {
  const ValueId input = w.tensor("input");
  const int64_t normed = static_cast<int64_t>(w.ints("normalized_shape").size());
  if (w.failed() || normed > w.rank(input)) return w.decline("a shape of more axes than the input"), Values{};
  const Formula f = formula_of(w, input);
  Values operands{input, w.tensor_or_none("weight"), w.tensor_or_none("bias")};
  while (operands.back() == kNone) operands.pop_back();
  const double eps = w.real("eps", 1e-5);
  const ValueId out = w.row(C::k_layer_norm, operands, {{AttrKey::k_rank, normed}, {AttrKey::k_eps, eps}});
  const Statistics s = statistics_of(f, f.in(input), axes_from(w.rank(input) - normed, w.rank(input)), eps);
  const ValueId weight = operands.size() > 1 ? operands[1] : kNone;
  return {out, kept_statistic(f, s.mean, 1, input, weight), kept_statistic(f, s.inverse, 2, input, weight)};
}

// The gradient of what was normalised, of that of the product with the weight: all of the same sizes, a mean being over `inner`.
ValueId normed_gradient(const Formula& f, ValueId scaled, ValueId normal, ValueId rstd, const Dims& inner) {
  const ValueId along = f.mul(normal, bodies::mean_of(f.w, f.mul(scaled, normal), inner));
  return f.mul(f.sub(f.sub(scaled, bodies::mean_of(f.w, scaled, inner)), along), rstd);
}

Values native_layer_norm_backward(Lowering& w) {
  const ValueId grad = w.tensor("grad_out"), input = w.tensor("input"), weight = w.tensor_or_none("weight");
  const int64_t normed = static_cast<int64_t>(w.ints("normalized_shape").size());
  if (w.failed() || normed > w.rank(input)) return w.decline("a shape of more axes than the input"), Values{};
  const Formula f = formula_of(w, input);
  const Dims inner = axes_from(w.rank(input) - normed, w.rank(input)), outer = axes_from(0, w.rank(input) - normed);
  const ValueId g = f.in(grad), rstd = f.in(w.tensor("rstd"));
  const ValueId normal = f.mul(f.sub(f.in(input), f.in(w.tensor("mean"))), rstd);
  const ValueId scaled = weight == kNone ? g : f.mul(g, f.in(weight));
  const ValueId dx = normed_gradient(f, scaled, normal, rstd, inner);
  const DType out = w.dtype_of(input);
  if (weight == kNone) return {w.cast(dx, out), kNone, kNone};
  const auto summed = [&](ValueId v) { return w.cast(outer.empty() ? v : w.reduce(C::k_sum, v, outer, false), w.dtype_of(weight)); };
  return {w.cast(dx, out), summed(f.mul(g, normal)), summed(g)};
}

// A parameter or statistic with one element for each channel, to be spread over x.
ValueId by_channel(const Formula& f, ValueId v, ValueId x) {
  if (v == kNone) return kNone;
  Dims sizes(static_cast<size_t>(f.w.rank(x)), 1);
  sizes[1] = f.w.sizes(x)[1];
  return f.w.reshape(f.in(v), sizes);
}

Dims all_but_channel(const Lowering& w, ValueId x) {
  Dims axes = axes_from(1, w.rank(x));
  axes[0] = 0;
  return axes;
}

// [N, C, ..] as [N, groups, all of a group], over whose last axis a group norm is.
ValueId by_group(const Formula& f, ValueId v, int64_t groups) {
  const Dims sizes = f.w.sizes(v);
  return f.w.reshape(v, {sizes[0], groups, f.w.type(v).num_elements() / (sizes[0] * groups)});
}

bool has_groups(Lowering& w, ValueId input, int64_t groups) {
  if (w.failed() || w.rank(input) < 2 || groups < 1 || w.sizes(input)[1] % groups != 0 || w.type(input).num_elements() == 0)
    w.decline("group norm below 2-d, of nothing, or of groups that do not divide the channels");
  return !w.failed();
}

Values native_group_norm(Lowering& w) {
  const ValueId input = w.tensor("input"), weight = w.tensor_or_none("weight");
  const int64_t groups = w.integer("group");
  if (!has_groups(w, input, groups)) return {};
  const Formula f = formula_of(w, input);
  Values operands{input, weight, w.tensor_or_none("bias")};
  while (operands.back() == kNone) operands.pop_back();
  const double eps = w.real("eps", 1e-5);
  const ValueId out = w.row(C::k_group_norm, operands, {{AttrKey::k_groups, groups}, {AttrKey::k_eps, eps}});
  const Statistics s = statistics_of(f, by_group(f, f.in(input), groups), {2}, eps);
  const auto kept = [&](ValueId statistic, size_t result) {
    return kept_statistic(f, w.reshape(statistic, {w.sizes(input)[0], groups}), result, input, weight);
  };
  return {out, kept(s.mean, 1), kept(s.inverse, 2)};
}

Values native_group_norm_backward(Lowering& w) {
  const ValueId grad = w.tensor("grad_out"), input = w.tensor("input"), weight = w.tensor_or_none("weight");
  const int64_t groups = w.integer("group");
  if (!has_groups(w, input, groups)) return {};
  const Formula f = formula_of(w, input);
  const ValueId x = f.in(input), g = f.in(grad), scaled = weight == kNone ? g : f.mul(g, by_channel(f, weight, x));
  const auto of_group = [&](const char* name) { return w.unsqueeze(f.in(w.tensor(name)), 2); };
  const ValueId rstd = of_group("rstd"), normal = f.mul(f.sub(by_group(f, x, groups), of_group("mean")), rstd);
  const ValueId dx = w.reshape(normed_gradient(f, by_group(f, scaled, groups), normal, rstd, {2}), w.sizes(input));
  if (weight == kNone) return {w.cast(dx, w.dtype_of(input)), kNone, kNone};
  const auto summed = [&](ValueId v) { return w.cast(w.reduce(C::k_sum, v, all_but_channel(w, x), false), w.dtype_of(weight)); };
  return {w.cast(dx, w.dtype_of(input)), summed(f.mul(g, w.reshape(normal, w.sizes(input)))), summed(g)};
}

// By the statistics of the batch; answers them, and the running ones as they are afterwards.
Values batch_norm_functional(Lowering& w) {
  const ValueId input = w.tensor("input"), weight = w.tensor_or_none("weight"), bias = w.tensor_or_none("bias");
  if (!w.flag("training")) w.decline("batch norm by running statistics in the functional form");
  if (w.failed() || w.rank(input) < 2) return w.decline("batch norm below 2-d"), Values{};
  const Formula f = formula_of(w, input);
  const Dims axes = all_but_channel(w, input);
  const double count = count_of(w, input, axes), momentum = w.real("momentum", 0.1);
  if (count < 2) return w.decline("batch norm of one element"), Values{};
  const ValueId x = f.in(input);
  const Statistics s = statistics_of(f, x, axes, w.real("eps", 1e-5));
  ValueId out = f.mul(f.sub(x, s.mean), s.inverse);
  if (weight != kNone) out = f.mul(out, by_channel(f, weight, x));
  if (bias != kNone) out = f.add(out, by_channel(f, bias, x));
  const Dims channels{w.sizes(input)[1]};
  const auto running = [&](const char* name, ValueId of_batch) {
    const ValueId old = w.tensor(name);
    const ValueId fresh = f.add(f.mul(f.in(old), 1 - momentum), f.mul(w.reshape(of_batch, channels), momentum));
    return w.cast(fresh, w.dtype_of(old));
  };
  const auto kept = [&](ValueId statistic, size_t result) {
    return kept_statistic(f, w.reshape(statistic, channels), result, input, w.tensor("running_mean"));
  };
  return {w.cast(out, w.dtype_of(input)), kept(s.mean, 1), kept(s.inverse, 2), running("running_mean", s.mean),
          running("running_var", f.mul(s.variance, count / (count - 1)))};
}

Values batch_norm_backward(Lowering& w) {
  const ValueId grad = w.tensor("grad_out"), input = w.tensor("input"), weight = w.tensor_or_none("weight");
  if (w.failed() || w.rank(input) < 2) return w.decline("batch norm below 2-d"), Values{};
  const Formula f = formula_of(w, input);
  const Dims axes = all_but_channel(w, input);
  const bool trains = w.flag("train");
  const ValueId x = f.in(input), g = f.in(grad);
  const ValueId mean = by_channel(f, w.tensor(trains ? "save_mean" : "running_mean"), x);
  ValueId inverse = by_channel(f, w.tensor(trains ? "save_invstd" : "running_var"), x);
  if (w.failed()) return {};
  if (!trains) inverse = f.of(C::k_rsqrt, f.is(C::k_add, inverse, w.real("eps", 1e-5)));
  const ValueId normal = f.mul(f.sub(x, mean), inverse);
  const ValueId sum = w.reduce(C::k_sum, g, axes, true), along = w.reduce(C::k_sum, f.mul(g, normal), axes, true);
  ValueId dx = g;
  if (trains) {
    const double share = 1 / count_of(w, input, axes);
    dx = f.sub(f.sub(g, f.mul(sum, share)), f.mul(normal, f.mul(along, share)));
  }
  const ValueId slope = weight == kNone ? inverse : f.mul(inverse, by_channel(f, weight, x));
  dx = w.cast(f.mul(dx, slope), w.dtype_of(input));
  if (weight == kNone) return {dx, kNone, kNone};
  const auto of_channel = [&](ValueId v) { return w.cast(w.reshape(v, {w.sizes(input)[1]}), w.dtype_of(weight)); };
  return {dx, of_channel(along), of_channel(sum)};
}

// ---- what views and lookups leave behind

// Zeros of `input_sizes`, of which a part is the gradient.
Values select_backward(Lowering& w) {
  const ValueId grad = w.tensor("grad_output");
  const Dims sizes = w.ints("input_sizes");
  const int64_t rank = static_cast<int64_t>(sizes.size()), dim = w.axis(w.integer("dim"), rank);
  if (w.failed() || rank == 0) return {};
  int64_t index = w.integer("index");
  if (index < 0) index += sizes[dim];
  const ValueId zeros = w.expand(w.full(Lowering::number(0.0), w.dtype_of(grad), {}), sizes);
  return {w.row(C::k_slice_scatter, {zeros, w.unsqueeze(grad, dim)},
                {{AttrKey::k_dim, dim}, {AttrKey::k_start, index}, {AttrKey::k_end, index + 1}, {AttrKey::k_step, int64_t{1}}})};
}

Values slice_backward(Lowering& w) {
  const ValueId grad = w.tensor("grad_output");
  const Dims sizes = w.ints("input_sizes");
  const int64_t rank = static_cast<int64_t>(sizes.size()), dim = w.axis(w.integer("dim"), rank), step = w.integer("step", 1);
  if (w.failed() || rank == 0) return {};
  const auto bound = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + sizes[dim] : at, 0, sizes[dim]); };
  const int64_t start = bound(w.integer("start")), end = std::max(start, bound(w.integer("end", sizes[dim])));
  const ValueId zeros = w.expand(w.full(Lowering::number(0.0), w.dtype_of(grad), {}), sizes);
  return {w.row(C::k_slice_scatter, {zeros, grad},
                {{AttrKey::k_dim, dim}, {AttrKey::k_start, start}, {AttrKey::k_end, end}, {AttrKey::k_step, step}})};
}

Values embedding_dense_backward(Lowering& w) {
  const ValueId grad = w.tensor("grad_output"), indices = w.tensor("indices");
  if (w.flag("scale_grad_by_freq")) w.decline("gradients that are scaled by how often a row was looked up");
  if (w.failed()) return {};
  const Formula f = formula_of(w, grad);
  const int64_t count = w.type(indices).num_elements(), width = w.sizes(grad).back(), padding = w.integer("padding_idx", -1);
  const ValueId index = w.reshape(w.cast(indices, DType::k_i64), {count});
  ValueId rows = w.reshape(f.in(grad), {count, width});
  if (padding >= 0) rows = f.choose(w.unsqueeze(f.is(C::k_ne, index, static_cast<double>(padding)), 1), rows, 0);
  const ValueId zeros = w.expand(w.full(Lowering::number(0.0), f.dtype, {}), {w.integer("num_weights"), width});
  const ValueId out = w.row(C::k_index_reduce, {zeros, index, rows},
                            {{AttrKey::k_dim, int64_t{0}}, {AttrKey::k_reduce, std::string("sum")}, {AttrKey::k_include_self, true}});
  return {w.cast(out, w.dtype_of(grad))};
}

// Of an average over all of each image.
Values adaptive_avg_pool2d_backward(Lowering& w) {
  const ValueId grad = w.tensor("grad_output"), x = w.tensor("self");
  if (w.failed() || w.rank(grad) != w.rank(x) || w.rank(x) < 3) return w.decline("pooling of another rank"), Values{};
  const Dims from = w.sizes(grad), to = w.sizes(x);
  const size_t h = to.size() - 2;
  if (from[h] != 1 || from[h + 1] != 1) return w.decline("the gradient of pooling to more than one element"), Values{};
  const Formula f = formula_of(w, x);
  const ValueId each = f.mul(f.in(grad), 1 / static_cast<double>(to[h] * to[h + 1]));
  return {w.cast(w.expand(each, to), w.dtype_of(x))};
}

constexpr RecipeRow kRecipes[] = {
    {"aten::threshold_backward", gated<above_threshold>},
    {"aten::hardtanh_backward", gated<inside_bounds>},
    {"aten::tanh_backward", times_slope<tanh_slope>},
    {"aten::sigmoid_backward", times_slope<sigmoid_slope>},
    {"aten::silu_backward", times_slope<silu_slope>},
    {"aten::gelu_backward", times_slope<gelu_slope>},
    {"aten::leaky_relu_backward", leaky_relu_backward},
    {"aten::native_dropout_backward", native_dropout_backward},
    {"aten::_softmax_backward_data", softmax_backward<false>},
    {"aten::_log_softmax_backward_data", softmax_backward<true>},
    {"aten::_safe_softmax", safe_softmax},
    {"aten::mse_loss_backward", mse_loss_backward},
    {"aten::nll_loss_forward", nll_loss_forward},
    {"aten::nll_loss_backward", nll_loss_backward},
    {"aten::native_layer_norm", native_layer_norm},
    {"aten::native_layer_norm_backward", native_layer_norm_backward},
    {"aten::native_group_norm", native_group_norm},
    {"aten::native_group_norm_backward", native_group_norm_backward},
    {"aten::_native_batch_norm_legit_functional", batch_norm_functional},
    {"aten::native_batch_norm_backward", batch_norm_backward},
    {"aten::select_backward", select_backward},
    {"aten::slice_backward", slice_backward},
    {"aten::embedding_dense_backward", embedding_dense_backward},
    {"aten::_adaptive_avg_pool2d_backward", adaptive_avg_pool2d_backward},
};

}  // namespace

std::span<const RecipeRow> backward_recipes() { return kRecipes; }

}  // namespace keirin
