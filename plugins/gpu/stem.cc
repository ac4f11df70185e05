// SPDX-License-Identifier: Apache-2.0
#include "plugins/gpu/stem.h"

#include <limits>

#include "plugins/gpu/conv.h"
#include "plugins/gpu/plan_step.h"
#include "plugins/gpu/text.h"

namespace keirin::gpu {
namespace {

using codegen::AnchorDesc;
using codegen::TensorDesc;
using Dims = std::vector<int64_t>;

constexpr int64_t kMostChannels = 4;
constexpr int64_t kThreads = 256;
constexpr double kRegroupShare = 0.5;  // of the memory's speed

ConvTensor channels_innermost(uint8_t dtype, const Dims& sizes) {
  return {dtype, sizes, {sizes[1] * sizes[2] * sizes[3], 1, sizes[3] * sizes[1], sizes[1]}};
}

int64_t elements(const Dims& sizes) {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

}  // namespace

std::optional<Stem> stem_of(const AnchorDesc& anchor, const Numerics& numerics) {
  std::string ignored;
  const auto p = conv_problem(anchor, numerics, ignored);
  if (!p || !p->is_forward_in_two_axes() || numerics.strict || anchor.operands[0].sizes.size() != 4 || anchor.groups != 1)
    return std::nullopt;
  const Dims &x = p->x.sizes, &w = p->w.sizes, &y = p->y.sizes;
  if (x[1] > kMostChannels || p->stride[0] * p->stride[1] == 1 || p->dilation != Dims{1, 1}) return std::nullopt;
  if (p->y.strides != channels_innermost(p->y.dtype, y).strides) return std::nullopt;

  const int64_t vec = 16 / float_bytes(p->x.dtype), grouped = (x[1] * p->stride[0] * p->stride[1] + vec - 1) / vec * vec;
  const auto taps = [&](size_t axis) { return (w[2 + axis] + p->stride[axis] - 1) / p->stride[axis]; };
  Stem out;
  out.conv = *p;
  out.conv.x = channels_innermost(p->x.dtype, {x[0], grouped, y[2] + taps(0) - 1, y[3] + taps(1) - 1});
  out.conv.w = channels_innermost(p->w.dtype, {w[0], grouped, taps(0), taps(1)});
  out.conv.stride = {1, 1}, out.conv.padding = {0, 0}, out.conv.new_filter = true;

  const int64_t image_words = elements(out.conv.x.sizes) / vec, filter_words = elements(out.conv.w.sizes) / vec;
  if (std::max(image_words, filter_words) + kThreads > std::numeric_limits<int32_t>::max()) return std::nullopt;
  const auto blocks = [](int64_t words) { return (words + kThreads - 1) / kThreads; };
  out.filter_at = (image_words * 16 + 255) / 256 * 256;
  TextKernel& k = out.regroup;
  k.defines = std::string("#define STORAGE ") + float_storage(p->x.dtype) + "\n#define CHANNELS " + std::to_string(x[1]) +
              "\n#define GROUPED " + std::to_string(grouped) + "\n#define STRIDE_H " + std::to_string(p->stride[0]) +
              "\n#define STRIDE_W " + std::to_string(p->stride[1]) + "\n";
  k.parts = {text::regroup};
  k.sizes = {blocks(image_words)};
  const auto add = [&](int64_t words, int64_t to, const ConvTensor& made, const ConvTensor& from, const Dims& padding) {
    k.sizes.insert(k.sizes.end(), {words, to, made.sizes[2], made.sizes[3], from.sizes[2], from.sizes[3], padding[0], padding[1],
                                   from.strides[0], from.strides[2], from.strides[3]});
  };
  add(image_words, 0, out.conv.x, p->x, p->padding);
  add(filter_words, out.filter_at, out.conv.w, p->w, {0, 0});
  k.sizes.insert(k.sizes.end(), {p->x.strides[1], p->w.strides[1]});
  k.pointers = {anchor.operands[0], anchor.operands[1]};
  k.reads_words = false;
  k.workspace_bytes = out.filter_at + filter_words * 16;
  k.launches = {{"regroup", blocks(image_words) + blocks(filter_words), static_cast<int>(kThreads)}};
  k.what = "space to depth " + std::to_string(p->stride[0]) + "x" + std::to_string(p->stride[1]);
  return out;
}

double regroup_seconds(const Stem& stem, const AnchorDesc& anchor, const codegen::TargetInfo& target) {
  const double bytes =
      static_cast<double>(stem.regroup.workspace_bytes + elements(anchor.operands[0].sizes) * float_bytes(anchor.operands[0].dtype));
  return target.launch_ns * 1e-9 + bytes / (kRegroupShare * target.bytes_per_s);
}

std::unique_ptr<codegen::Step> make_stem(const Stem& stem, const AnchorDesc& anchor, const CodeTarget& target, const PlanLibrary& library,
                                         bool load) {
  return make_plan_step(std::string(library.name()) + " conv", conv_tensors(anchor),
                        stem.regroup.what + " +" + std::to_string(anchor.post_ops.size()), library.plan(stem.conv),
                        {make_text_step(stem.regroup, target, load), {0, stem.filter_at}});
}

}  // namespace keirin::gpu
