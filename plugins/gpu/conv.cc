// SPDX-License-Identifier: Apache-2.0
#include "plugins/gpu/conv.h"

#include <algorithm>

#include "plugins/codegen/kernel/rows.h"
#include "plugins/gpu/library_tail.h"
#include "plugins/gpu/plan_step.h"
#include "plugins/kit/tables.h"

namespace keirin::gpu {
namespace {

using codegen::AnchorDesc;
using codegen::PostOp;
using codegen::TensorDesc;
using Dims = std::vector<int64_t>;

constexpr size_t kMaxStages = 5;
constexpr int64_t kCachedShare = 4;  // a residual of less than one part in so many of the last cache is read from there

bool same_where_it_counts(const Dims& sizes, const Dims& a, const Dims& b) {
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] != 1 && a[d] != b[d]) return false;
  return true;
}

// Libraries read the layout off the strides, so axes of size 1 get those of the layout that the rest agrees with.
void settle_strides(ConvTensor& t, bool prefer_channels_last) {
  const bool is_last = is_packed(t, true), is_plain = is_packed(t, false);
  if (is_last || is_plain) t.strides = packed_strides(t.sizes, is_last && (prefer_channels_last || !is_plain));
}

// One spatial axis becomes two, the first of size 1.
ConvTensor tensor_of(const TensorDesc& d) {
  ConvTensor t{d.dtype, d.sizes, d.strides};
  if (t.sizes.size() == 3) {
    t.sizes.insert(t.sizes.begin() + 2, 1);
    t.strides.insert(t.strides.begin() + 2, t.sizes[3] * t.strides[2]);
  }
  return t;
}

std::optional<ConvStage::Op> stage_of(uint32_t op) {
  switch (op) {
    case kit::kOp_add: return ConvStage::kAdd;
    case kit::kOp_mul: return ConvStage::kMul;
    case kit::kOp_relu: return ConvStage::kRelu;
    case kit::kOp_sigmoid: return ConvStage::kSigmoid;
    case kit::kOp_tanh: return ConvStage::kTanh;
    case kit::kOp_silu: return ConvStage::kSilu;
    case kit::kOp_gelu: return ConvStage::kGelu;
    case kit::kOp_gelu_tanh: return ConvStage::kGeluTanh;
    default: return std::nullopt;
  }
}

bool takes_operand(ConvStage::Op op) { return op == ConvStage::kAdd || op == ConvStage::kMul; }

// Per channel, or as large as the result and laid out like it.
std::optional<ConvTensor> epilogue_operand(const TensorDesc& d, const ConvTensor& y) {
  // Engines round an f32 scale or shift to the result's 16 bits, and a per-channel error does not average out: ResNet-50's
  // output was five times as far from fp64 as eager's. Such an epilogue is a kernel of its own.
  if (d.dtype != y.dtype) return std::nullopt;
  ConvTensor t = tensor_of(d);
  if (t.sizes != y.sizes) return std::nullopt;
  bool per_channel = true;
  for (size_t k = 0; k < t.sizes.size(); ++k)
    per_channel &= k == 1 ? t.strides[k] == 1 || t.sizes[k] == 1 : t.strides[k] == 0 || t.sizes[k] == 1;
  if (per_channel) {
    const int64_t channels = t.sizes[1];
    t.sizes.assign(t.sizes.size(), 1), t.strides.assign(t.sizes.size(), channels);
    t.sizes[1] = channels, t.strides[1] = 1;
    return t;
  }
  if (d.dtype != y.dtype || !same_where_it_counts(t.sizes, t.strides, y.strides)) return std::nullopt;
  t.strides = y.strides;
  return t;
}

ConvProblem::Role result_of(const AnchorDesc& anchor) {
  if (anchor.op == kit::kOp_conv_grad_weight) return ConvProblem::kW;
  return anchor.transposed ? ConvProblem::kX : ConvProblem::kY;
}

bool add_stages(const AnchorDesc& anchor, ConvProblem& p, std::string& why_not) {
  const ConvTensor& result = p.of(p.result);
  if (anchor.operands.size() > 2 && anchor.operands[2].present()) {
    const TensorDesc& b = anchor.operands[2];
    if (b.strides[0] != 1 && b.sizes[0] != 1) return why_not = "a bias with gaps", false;
    const int64_t channels = b.sizes[0];
    ConvTensor t{b.dtype, Dims(result.sizes.size(), 1), Dims(result.sizes.size(), channels)};
    t.sizes[1] = channels, t.strides[1] = 1;
    p.stages.push_back({ConvStage::kAdd, t});
  }
  for (const PostOp& post : anchor.post_ops) {
    const auto op = stage_of(post.op);
    if (!op) return why_not = "an epilogue that the library has no name for", false;
    ConvStage stage{*op, {}};
    if (takes_operand(*op)) {
      auto operand = epilogue_operand(post.operand, result);
      if (!operand) return why_not = "an epilogue operand of another shape, dtype or layout", false;
      stage.operand = std::move(*operand);
    }
    p.stages.push_back(std::move(stage));
  }
  if (p.stages.size() > kMaxStages) return why_not = "an epilogue longer than the library fuses", false;
  return true;
}

}  // namespace

std::optional<ConvProblem> conv_problem(const AnchorDesc& anchor, const Numerics& numerics, std::string& why_not) {
  const TensorDesc &x = anchor.operands[0], &w = anchor.operands[1], &y = anchor.results[0];
  const bool dtype_known = x.dtype == kit::kDType_f32 || x.dtype == kit::kDType_bf16 || x.dtype == kit::kDType_f16;
  if (!dtype_known || w.dtype != x.dtype || y.dtype != x.dtype) return why_not = "convolutions take f32, bf16 and f16 here", std::nullopt;
  if (x.sizes.size() < 3 || x.sizes.size() > 5) return why_not = "a convolution over four axes runs in eager's library", std::nullopt;
  ConvProblem p;
  p.stride = anchor.stride, p.padding = anchor.padding, p.dilation = anchor.dilation;
  p.tf32 = numerics.tf32_convolutions && !anchor.ieee;
  p.result = result_of(anchor);
  // Operands and result, each as what it is to the convolution that is asked about.
  switch (p.result) {
    case ConvProblem::kX: p.y = tensor_of(x), p.w = tensor_of(w), p.x = tensor_of(y); break;
    case ConvProblem::kW: p.x = tensor_of(x), p.y = tensor_of(w), p.w = tensor_of(y); break;
    case ConvProblem::kY: p.x = tensor_of(x), p.w = tensor_of(w), p.y = tensor_of(y); break;
  }
  for (Dims* dims : {&p.stride, &p.padding, &p.dilation})
    if (dims->size() + 3 == p.x.sizes.size()) dims->insert(dims->begin(), dims == &p.padding ? 0 : 1);
  const bool last = is_packed(p.y, true) && (is_packed(p.x, true) || !is_packed(p.x, false));
  for (ConvTensor* t : {&p.x, &p.w, &p.y}) settle_strides(*t, last);
  if (!add_stages(anchor, p, why_not)) return std::nullopt;
  return p;
}

std::optional<AnchorDesc> conv_as_linear(const AnchorDesc& anchor) {
  std::string ignored;
  const auto p = conv_problem(anchor, {}, ignored);
  if (!p || !p->is_forward_in_two_axes() || anchor.groups != 1) return std::nullopt;
  if (!is_packed(p->x, true) || !is_packed(p->y, true) || !is_packed(p->w, true)) return std::nullopt;
  auto all = [](const Dims& dims, int64_t value) { return std::all_of(dims.begin(), dims.end(), [&](int64_t v) { return v == value; }); };
  if (!all(p->stride, 1) || !all(p->padding, 0) || p->w.sizes[2] != 1 || p->w.sizes[3] != 1) return std::nullopt;
  const int64_t rows = p->x.sizes[0] * p->x.sizes[2] * p->x.sizes[3];
  auto matrix = [](const TensorDesc& t, int64_t m, int64_t n) {
    TensorDesc out = t;
    out.sizes = {m, n}, out.strides = {n, 1};
    return out;
  };
  AnchorDesc out;
  out.op = kit::kOp_linear;
  out.ieee = anchor.ieee;
  out.operands = {matrix(anchor.operands[0], rows, p->x.sizes[1]), matrix(anchor.operands[1], p->y.sizes[1], p->x.sizes[1]),
                  anchor.operands.size() > 2 ? anchor.operands[2] : TensorDesc{}};
  if (out.operands[2].present() && out.operands[2].dtype != anchor.results[0].dtype) return std::nullopt;
  out.results = {matrix(anchor.results[0], rows, p->y.sizes[1])};
  for (PostOp post : anchor.post_ops) {
    if (post.operand.present() && same_where_it_counts(p->y.sizes, tensor_of(post.operand).strides, p->y.strides))
      post.operand = matrix(post.operand, rows, p->y.sizes[1]);
    out.post_ops.push_back(std::move(post));
  }
  return out;
}

std::optional<ConvShares> conv_shares(const AnchorDesc& anchor, const Numerics& numerics, const PlanLibrary* library,
                                      std::string& why_not) {
  const auto whole = conv_problem(anchor, numerics, why_not);
  if (!whole) return std::nullopt;
  if (!library || library->supports(*whole, why_not)) return ConvShares{*whole, std::nullopt};
  std::string ignored;
  if (anchor.operands.size() < 3 || !anchor.operands[2].present()) return std::nullopt;  // what follows is added next door
  const ConvTensor& result = whole->of(whole->result);
  int64_t elements = 1;
  for (int64_t size : result.sizes) elements *= size;
  if (bytes_of(result) != elements * codegen::dtype_bytes(result.dtype)) return std::nullopt;  // gaps
  auto tail = library_tail(anchor, {elements, elements, elements, result.strides[1], result.sizes[1]}, ignored);
  if (!tail) return std::nullopt;
  ConvShares out{*whole, std::move(tail)};
  out.problem.stages.resize(1);  // where the library fuses the bias, what it does not fuse as well is a kernel next door
  if (!anchor.post_ops.empty() && library->supports(out.problem, ignored)) return std::nullopt;
  out.problem.stages.clear();
  return library->supports(out.problem, ignored) ? std::optional(std::move(out)) : std::nullopt;
}

// Engines that read a residual are compiled for half a second each and need a fence before them. That pays where the residual
// comes from memory; from the cache the kernel next door adds it, which reads the result anyway.
static bool is_cached_residual(const AnchorDesc& anchor, const PostOp& post, int64_t cache_bytes) {
  if (!post.operand.present() || std::count(post.operand.strides.begin(), post.operand.strides.end(), 0) > 0) return false;
  int64_t bytes = codegen::dtype_bytes(post.operand.dtype);
  for (int64_t size : anchor.results[0].sizes) bytes *= size;
  return bytes < cache_bytes / kCachedShare;
}

bool conv_takes_post_op(const AnchorDesc& anchor, const PostOp& post, const Numerics& numerics, const PlanLibrary* library,
                        int64_t cache_bytes) {
  if (is_cached_residual(anchor, post, cache_bytes)) return false;
  AnchorDesc longer = anchor;
  longer.post_ops.push_back(post);
  std::string ignored;
  return conv_shares(longer, numerics, library, ignored).has_value();
}

std::vector<TensorDesc> conv_tensors(const AnchorDesc& anchor) {
  const TensorDesc &a = anchor.operands[0], &b = anchor.operands[1], &result = anchor.results[0];
  std::vector<TensorDesc> out{a, b, result};
  switch (result_of(anchor)) {
    case ConvProblem::kX: out = {result, b, a}; break;
    case ConvProblem::kW: out = {a, result, b}; break;
    case ConvProblem::kY: break;
  }
  if (anchor.operands.size() > 2 && anchor.operands[2].present()) out.push_back(anchor.operands[2]);
  for (const PostOp& post : anchor.post_ops)
    if (post.operand.present()) out.push_back(post.operand);
  return out;
}

std::unique_ptr<codegen::Step> make_conv(const AnchorDesc& anchor, const ConvShares& shares, const PlanLibrary& library,
                                         const CodeTarget& target, bool load, double* seconds) {
  const auto plan = library.plan(shares.problem);
  if (seconds) *seconds = plan->seconds();
  std::vector<TensorDesc> tensors = conv_tensors(anchor);
  if (shares.tail) tensors.resize(3);
  return make_plan_step(std::string(library.name()) + " conv", tensors,
                        "+" + std::to_string(shares.tail ? 0 : anchor.post_ops.size()), plan, {},
                        shares.tail ? make_text_step(*shares.tail, target, load) : nullptr);
}

}  // namespace keirin::gpu
