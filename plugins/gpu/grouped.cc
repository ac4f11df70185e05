// SPDX-License-Identifier: Apache-2.0
#include "plugins/gpu/grouped.h"

#include <algorithm>
#include <limits>

#include "plugins/gpu/conv.h"
#include "plugins/gpu/text.h"
#include "plugins/kit/tables.h"

namespace keirin::gpu {
namespace {

using codegen::AnchorDesc;
using codegen::PostOp;
using codegen::TensorDesc;

constexpr int kThreads = 128;  // of a block, as the text has them
constexpr int64_t kMostFilterBytes = 32 << 10, kMostTaps = 11;  // of a block's filters in shared memory; along an axis
constexpr int64_t kMostSpan = 12;                               // words of a line that a thread holds
constexpr int64_t kFewestLanes = 8;                             // 128 bytes at once
constexpr int64_t kLargestGroup = 32, kLargestRounded = 4;      // channels; where operands may be rounded

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

std::optional<TextKernel> grouped_kernel(const AnchorDesc& anchor, const Gpu& gpu, const Numerics& numerics, std::string& why_not) {
  auto no = [&](const char* why) { return why_not = why, std::nullopt; };
  AnchorDesc plain = anchor;
  plain.post_ops.clear();
  const auto p = conv_problem(plain, {}, why_not);
  if (!p) return std::nullopt;
  if (!p->is_forward_in_two_axes()) return no("transposed ones and those over three axes are a library's");
  const TensorDesc &x = anchor.operands[0], &w = anchor.operands[1], &y = anchor.results[0];
  const int64_t channels = p->x.sizes[1], vec = 16 / float_bytes(x.dtype), group = p->w.sizes[1];
  const bool rounds = x.dtype != kit::kDType_f32 || (numerics.tf32_convolutions && !anchor.ieee);
  if (p->y.sizes[1] != channels || anchor.groups * group != channels || group > (rounds ? kLargestRounded : kLargestGroup) ||
      (group % vec != 0 && vec % group != 0))
    return no("many channels that are mixed, or to others in number, are a library's");
  const auto words = [&](const ConvTensor& t, const TensorDesc& at) {
    return t.strides[1] == 1 && t.strides[0] % vec == 0 && t.strides[2] % vec == 0 && t.strides[3] % vec == 0 && at.offset % vec == 0;
  };
  if (channels % vec != 0 || !words(p->x, x) || !words(p->y, y)) return no("channels that are not innermost, in whole 16-byte words");
  const int64_t taps_h = p->w.sizes[2], taps_w = p->w.sizes[3], rows = p->y.sizes[2], columns = p->y.sizes[3], images = p->y.sizes[0];
  if (std::max(taps_h, taps_w) > kMostTaps) return no("a filter that large is a library's");
  TensorDesc bias, residual;
  if (anchor.operands.size() > 2) bias = anchor.operands[2];
  if (bias.present() && (bias.dtype != x.dtype || bias.offset % vec != 0)) return no("a bias of another dtype");
  std::string epilogue;
  for (const PostOp& post : anchor.post_ops) {
    const std::string text = epilogue_text(post);
    if (text.empty() || (post.op == kit::kOp_add && residual.present())) return no("an epilogue without a form here");
    epilogue += text;
    if (post.op != kit::kOp_add) continue;
    residual = post.operand;
    if (residual.dtype != y.dtype || residual.sizes != y.sizes || residual.strides != y.strides || residual.offset % vec != 0)
      return no("a residual of another shape");
  }

  // As much for one thread as leaves every multiprocessor a block.
  int64_t strip = 4;
  const auto span = [&] { return (strip - 1) * p->stride[1] + (taps_w - 1) * p->dilation[1] + 1; };
  while (strip > 1 && (span() > kMostSpan || strip > columns)) strip /= 2;
  if (strip == 1 && taps_w > kMostSpan) return no("a filter that large is a library's");
  const int64_t channel_words = channels / vec;
  int64_t most_lanes = gpu.wave;
  const auto lanes = [&] { return ceil_div(channel_words, ceil_div(channel_words, most_lanes)); };
  const auto blocks = [&] {
    return ceil_div(channel_words, lanes()) * ceil_div(images * rows * ceil_div(columns, strip), kThreads / lanes());
  };
  while (blocks() < gpu.facts.num_units && (strip > 1 || most_lanes > kFewestLanes)) {
    if (most_lanes > kFewestLanes) most_lanes /= 2;
    else strip /= 2;
  }
  while (lanes() * vec * group * taps_h * taps_w * 4 > kMostFilterBytes && most_lanes > 1) most_lanes /= 2;
  if (lanes() * vec * group * taps_h * taps_w * 4 > kMostFilterBytes) return no("filters that large are a library's");
  if (images * rows * columns * channels == 0 || blocks() > std::numeric_limits<int32_t>::max() ||
      images * rows * columns > std::numeric_limits<int32_t>::max())
    return no("an image that a launch does not count");

  TextKernel out;
  const auto define = [&](const char* name, int64_t value) {
    out.defines += std::string("#define ") + name + " " + std::to_string(value) + "\n";
  };
  out.defines = std::string("#define STORAGE ") + float_storage(x.dtype) + "\n";
  define("TAPS_H", taps_h), define("TAPS_W", taps_w), define("STEP_H", p->stride[0]), define("STEP_W", p->stride[1]);
  define("APART_H", p->dilation[0]), define("APART_W", p->dilation[1]), define("STRIP", strip), define("LANES", lanes());
  define("GROUP", group), define("BIAS", bias.present());
  out.defines += "#define EPILOGUE " + epilogue + "\n";
  out.parts = {text::grouped};
  out.sizes = {images,          channels,        p->x.sizes[2],   p->x.sizes[3],   rows,
               columns,         p->padding[0],   p->padding[1],   p->x.strides[0], p->x.strides[2],
               p->x.strides[3], p->w.strides[0], p->w.strides[1], p->w.strides[2], p->w.strides[3],
               p->y.strides[0], p->y.strides[2], p->y.strides[3]};
  out.pointers = {x, w, bias, y, residual};
  out.launches = {{"grouped", blocks(), kThreads}};
  out.what = "groups of " + std::to_string(group) + ", " + std::to_string(taps_h) + "x" + std::to_string(taps_w) + " [" +
             std::to_string(images) + ", " + std::to_string(rows) + "x" + std::to_string(columns) + ", " + std::to_string(channels) +
             "], " + std::to_string(strip) + " by " + std::to_string(lanes()) + " threads";
  return out;
}

}  // namespace keirin::gpu
