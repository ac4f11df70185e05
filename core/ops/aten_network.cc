// SPDX-License-Identifier: Apache-2.0
//
// Recipes of the layers kept whole: norms, pools, resizing, recurrent cells and embedding bags.
#include <cmath>
#include <cstring>
#include <limits>

#include "core/ops/decompose.h"
#include "core/ops/lowering.h"

namespace keirin {
namespace {

Values trimmed(Values operands) {
  while (!operands.empty() && operands.back() == kNone) operands.pop_back();
  return operands;
}

bool trains(Lowering& w) { return w.given("training") ? w.flag("training") : w.flag("train"); }

Values batch_norm(Lowering& w) {
  const bool has_statistics = w.given("running_mean") && w.given("running_var");
  if (trains(w) && !w.given("running_mean") && !w.given("running_var")) {
    ValueId x = w.tensor("input");
    if (w.rank(x) < 2) w.decline("batch norm below 2-d");
    if (w.failed()) return {};
    return {bodies::batch_norm_of_batch(w, x, w.tensor_or_none("weight"), w.tensor_or_none("bias"), w.real("eps", 1e-5))};
  }
  if (trains(w) || !has_statistics) w.decline("batch norm that updates its statistics, or has one of the two");
  return {w.row(OpCode::k_batch_norm,
                {w.tensor("input"), w.tensor_or_none("weight"), w.tensor_or_none("bias"), w.tensor("running_mean"),
                 w.tensor("running_var")},
                {{AttrKey::k_eps, w.real("eps", 1e-5)}})};
}

Values native_batch_norm(Lowering& w) {
  if (trains(w)) w.decline("batch norm that answers the statistics of its batch");
  return w.failed() ? Values{} : Values{batch_norm(w)[0], kNone, kNone};
}

Values instance_norm(Lowering& w) {
  ValueId x = w.tensor("input");
  if (!w.flag("use_input_stats", true)) return batch_norm(w);
  if (w.given("running_mean")) w.decline("instance norm that updates its statistics");
  if (w.rank(x) < 2) w.decline("instance norm below 2-d");
  if (w.failed()) return {};
  return {w.row(OpCode::k_group_norm, trimmed({x, w.tensor_or_none("weight"), w.tensor_or_none("bias")}),
                {{AttrKey::k_groups, w.sizes(x)[1]}, {AttrKey::k_eps, w.real("eps", 1e-5)}})};
}

Values layer_norm(Lowering& w) {
  ValueId x = w.tensor("input");
  return {w.row(OpCode::k_layer_norm, trimmed({x, w.tensor_or_none("weight"), w.tensor_or_none("bias")}),
                {{AttrKey::k_rank, static_cast<int64_t>(w.ints("normalized_shape").size())},
                 {AttrKey::k_eps, w.real("eps", 1e-5)}})};
}

Values group_norm(Lowering& w) {
  ValueId x = w.tensor("input");
  return {w.row(OpCode::k_group_norm, trimmed({x, w.tensor_or_none("weight"), w.tensor_or_none("bias")}),
                {{AttrKey::k_groups, w.integer(w.given("num_groups") ? "num_groups" : "group")},
                 {AttrKey::k_eps, w.real("eps", 1e-5)}})};
}

Values rms_norm(Lowering& w) {
  ValueId x = w.tensor("input");
  DType d = w.dtype_of(x);
  if (!w.given("eps") && dtype_bytes(d) == 2) w.decline("rms_norm without eps in half precision");
  double eps = d == DType::k_f64 ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
  return {w.row(OpCode::k_rms_norm, trimmed({x, w.tensor_or_none("weight")}),
                {{AttrKey::k_rank, static_cast<int64_t>(w.ints("normalized_shape").size())},
                 {AttrKey::k_eps, w.real("eps", eps)}})};
}

// ---- windows over n spatial axes; a missing batch axis is added and taken away

struct Spatial {
  ValueId x;
  bool unbatched;
};

Spatial batched(Lowering& w, size_t n) {
  ValueId x = w.tensor(w.given("self") ? "self" : "input");
  bool unbatched = w.rank(x) == static_cast<int64_t>(n) + 1;
  return {unbatched ? w.unsqueeze(x, 0) : x, unbatched};
}

Values finished(Lowering& w, const Spatial& s, ValueId out) {
  Dims sizes = w.sizes(out);
  if (w.failed()) return {kNone};
  return {s.unbatched ? w.reshape(out, Dims(sizes.begin() + 1, sizes.end())) : out};
}

Dims per_axis(const Dims& list, size_t n, const Dims& fallback) {
  if (list.empty()) return fallback;
  return list.size() == 1 ? Dims(n, list[0]) : list;
}

template <size_t kAxes>
Values max_pool(Lowering& w) {
  Spatial s = batched(w, kAxes);
  Dims kernel = per_axis(w.ints("kernel_size"), kAxes, {});
  Attrs attrs{{AttrKey::k_kernel, kernel},
                          {AttrKey::k_stride, per_axis(w.ints("stride"), kAxes, kernel)},
                          {AttrKey::k_padding, per_axis(w.ints("padding"), kAxes, Dims(kAxes, 0))},
                          {AttrKey::k_dilation, per_axis(w.ints("dilation"), kAxes, Dims(kAxes, 1))},
                          {AttrKey::k_ceil_mode, w.flag("ceil_mode")}};
  return finished(w, s, w.row(OpCode::k_max_pool, {s.x}, std::move(attrs)));
}

template <size_t kAxes>
Values max_pool_with_indices(Lowering& w) {
  return {max_pool<kAxes>(w)[0], kNone};
}

template <size_t kAxes>
Values avg_pool(Lowering& w) {
  Spatial s = batched(w, kAxes);
  Dims kernel = per_axis(w.ints("kernel_size"), kAxes, {});
  Attrs attrs{{AttrKey::k_kernel, kernel},
                          {AttrKey::k_stride, per_axis(w.ints("stride"), kAxes, kernel)},
                          {AttrKey::k_padding, per_axis(w.ints("padding"), kAxes, Dims(kAxes, 0))},
                          {AttrKey::k_ceil_mode, w.flag("ceil_mode")},
                          {AttrKey::k_count_include_pad, w.flag("count_include_pad", true)},
                          {AttrKey::k_divisor, w.given("divisor_override") ? w.integer("divisor_override") : 0}};
  return finished(w, s, w.row(OpCode::k_avg_pool, {s.x}, std::move(attrs)));
}

template <size_t kAxes>
Values adaptive_avg_pool(Lowering& w) {
  Spatial s = batched(w, kAxes);
  return finished(
      w, s,
      w.row(OpCode::k_adaptive_avg_pool, {s.x}, {{AttrKey::k_sizes, per_axis(w.ints("output_size"), kAxes, {})}}));
}

int64_t bits_of(double v) {
  int64_t bits;
  std::memcpy(&bits, &v, sizeof bits);
  return bits;
}

// The two spellings of scale factors: a list (.vec), or one argument an axis.
std::vector<double> scale_factors(Lowering& w, size_t n) {
  if (w.given("scale_factors")) return w.reals("scale_factors");
  const char* names[] = {"scales_d", "scales_h", "scales_w"};
  std::vector<double> scales;
  for (size_t i = 0; i < n; ++i) {
    const char* name = n == 1 ? "scales" : names[3 - n + i];
    if (w.given(name)) scales.push_back(w.real(name));
  }
  return scales;
}

template <size_t kAxes, bool kLinear>
Values upsample(Lowering& w) {
  Spatial s = batched(w, kAxes);
  Dims sizes = w.ints("output_size"), own = w.sizes(s.x);
  std::vector<double> factors = scale_factors(w, kAxes);
  if (factors.size() != 0 && factors.size() != kAxes) w.decline("scale factors on some axes only");
  if (w.failed() || own.size() != kAxes + 2) return w.decline("resizing of another rank"), Values{};
  if (sizes.empty())
    for (size_t i = 0; i < factors.size(); ++i)
      sizes.push_back(static_cast<int64_t>(std::floor(static_cast<double>(own[i + 2]) * factors[i])));
  Dims scales;
  for (double f : factors) scales.push_back(bits_of(f));
  if (!kLinear)
    return finished(w, s,
                    w.row(OpCode::k_upsample_nearest, {s.x}, {{AttrKey::k_sizes, sizes}, {AttrKey::k_scales, scales}}));
  return finished(w, s,
                  w.row(OpCode::k_upsample_bilinear, {s.x},
                        {{AttrKey::k_sizes, sizes},
                         {AttrKey::k_scales, scales},
                         {AttrKey::k_align_corners, w.flag("align_corners")}}));
}

// ---- recurrent cells

template <OpCode kCode>
Values rnn(Lowering& w) {
  if (w.flag("train") && w.real("dropout") != 0) w.decline("dropout in training draws random numbers");
  Values operands{w.tensor("input")};
  for (ValueId h : w.tensors("hx")) operands.push_back(h);
  for (ValueId p : w.tensors("params")) operands.push_back(p);
  return w.rows(kCode, operands,
                {{AttrKey::k_layers, w.integer("num_layers", 1)},
                 {AttrKey::k_bidirectional, w.flag("bidirectional")},
                 {AttrKey::k_batch_first, w.flag("batch_first")},
                 {AttrKey::k_has_biases, w.flag("has_biases", true)}});
}

Values embedding_bag(Lowering& w) {
  ValueId offsets = w.tensor_or_none("offsets");
  if (w.given("per_sample_weights")) w.decline("embedding bag with weights a sample");
  if (w.given("padding_idx") && w.integer("padding_idx") >= 0) w.decline("embedding bag with padding");
  static constexpr const char* kModes[] = {"sum", "mean", "max"};
  int64_t mode = w.integer("mode", 0);
  if (mode < 0 || mode > 2) return w.decline("embedding bag of mode " + std::to_string(mode)), Values{};
  ValueId out = w.row(
      OpCode::k_embedding_bag, {w.tensor("weight"), w.tensor("indices"), offsets},
      {{AttrKey::k_mode, std::string(kModes[mode])}, {AttrKey::k_include_last_offset, w.flag("include_last_offset")}});
  return {out, kNone, kNone, kNone};
}

Values mse_loss(Lowering& w) {
  ValueId a = w.tensor("self"), b = w.tensor("target");
  DType d = w.result_type({w.as_operand(a), w.as_operand(b)});
  ValueId difference = w.pointwise(OpCode::k_sub, {w.as_operand(a), w.as_operand(b)}, d);
  ValueId squared = w.binary(OpCode::k_mul, difference, difference);
  int64_t reduction = w.integer("reduction", 1);
  Dims all = w.axes({}, w.rank(squared));
  if (reduction == 0) return {squared};
  return {w.reduce(reduction == 1 ? OpCode::k_mean : OpCode::k_sum, squared, all, false)};
}

// v * (g / |v|), a length for each index along `dim`.
Values weight_norm(Lowering& w) {
  ValueId v = w.tensor("v"), g = w.tensor("g");
  const DType out = w.dtype_of(v), compute = compute_dtype(out);
  const int64_t rank = w.rank(v), dim = w.integer("dim", 0);
  if (!is_float(out) || dim < 0 || dim >= rank) return w.decline("a weight norm over all axes"), Values{};
  Dims others;
  for (int64_t d = 0; d < rank; ++d)
    if (d != dim) others.push_back(d);
  v = w.cast(v, compute), g = w.cast(g, compute);
  ValueId length = w.row(OpCode::k_sqrt, {w.reduce(OpCode::k_sum, w.binary(OpCode::k_mul, v, v), others, true)});
  ValueId factor = w.pointwise(OpCode::k_div, {w.as_operand(g), w.as_operand(length)}, compute);
  return {w.cast(w.pointwise(OpCode::k_mul, {w.as_operand(v), w.as_operand(factor)}, compute), out)};
}

constexpr RecipeRow kRecipes[] = {
    {"aten::_weight_norm", weight_norm},
    {"aten::batch_norm", batch_norm},
    {"aten::_native_batch_norm_legit_no_training", native_batch_norm},
    {"aten::native_batch_norm", native_batch_norm},
    {"aten::_native_batch_norm_legit", native_batch_norm},
    {"aten::instance_norm", instance_norm},
    {"aten::layer_norm", layer_norm},
    {"aten::group_norm", group_norm},
    {"aten::rms_norm", rms_norm},
    {"aten::max_pool1d", max_pool<1>},
    {"aten::max_pool2d", max_pool<2>},
    {"aten::max_pool3d", max_pool<3>},
    {"aten::max_pool2d_with_indices", max_pool_with_indices<2>},
    {"aten::max_pool3d_with_indices", max_pool_with_indices<3>},
    {"aten::avg_pool1d", avg_pool<1>},
    {"aten::avg_pool2d", avg_pool<2>},
    {"aten::avg_pool3d", avg_pool<3>},
    {"aten::adaptive_avg_pool1d", adaptive_avg_pool<1>},
    {"aten::adaptive_avg_pool2d", adaptive_avg_pool<2>},
    {"aten::_adaptive_avg_pool2d", adaptive_avg_pool<2>},
    {"aten::adaptive_avg_pool3d", adaptive_avg_pool<3>},
    {"aten::upsample_nearest1d", upsample<1, false>},
    {"aten::upsample_nearest1d.vec", upsample<1, false>},
    {"aten::upsample_nearest2d", upsample<2, false>},
    {"aten::upsample_nearest2d.vec", upsample<2, false>},
    {"aten::upsample_nearest3d", upsample<3, false>},
    {"aten::upsample_nearest3d.vec", upsample<3, false>},
    {"aten::upsample_bilinear2d", upsample<2, true>},
    {"aten::upsample_bilinear2d.vec", upsample<2, true>},
    {"aten::lstm.input", rnn<OpCode::k_lstm>},
    {"aten::gru.input", rnn<OpCode::k_gru>},
    {"aten::embedding_bag", embedding_bag},
    {"aten::embedding_bag.padding_idx", embedding_bag},
    {"aten::_embedding_bag", embedding_bag},
    {"aten::_embedding_bag_forward_only", embedding_bag},
    {"aten::mse_loss", mse_loss},
};

}  // namespace

std::span<const RecipeRow> network_recipes() { return kRecipes; }

}  // namespace keirin
