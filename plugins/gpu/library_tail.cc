// SPDX-License-Identifier: Apache-2.0
#include "plugins/gpu/library_tail.h"

#include <limits>

#include "plugins/gpu/text.h"
#include "plugins/kit/tables.h"

namespace keirin::gpu {
namespace {

constexpr int64_t kThreads = 256, kEach = 8;  // of a block and a thread, as the text has them

}  // namespace

std::optional<TextKernel> library_tail(const codegen::AnchorDesc& anchor, const TailShape& shape, std::string& why_not) {
  const auto no = [&](const char* why) { return why_not = why, std::nullopt; };
  const codegen::TensorDesc& y = anchor.results[0];
  const codegen::TensorDesc bias = anchor.operands.size() > 2 ? anchor.operands[2] : codegen::TensorDesc{};
  if (!float_storage(y.dtype)) return no("a dtype without a kernel for the bias");
  if (bias.present() && bias.dtype != y.dtype) return no("a bias of another dtype");
  if (shape.elements > std::numeric_limits<int32_t>::max() - kThreads * kEach) return no("a result that a launch does not count");
  codegen::TensorDesc residual;
  std::string epilogue;
  for (const codegen::PostOp& post : anchor.post_ops) {
    const std::string text = epilogue_text(post);
    if (text.empty() || (post.op == kit::kOp_add && residual.present())) return no("an epilogue without a form here");
    epilogue += text;
    if (post.op != kit::kOp_add) continue;
    residual = post.operand;
    if (residual.dtype != y.dtype || residual.sizes != y.sizes || residual.strides != y.strides) return no("a residual of another shape");
  }
  TextKernel out;
  out.defines = std::string("#define STORAGE ") + float_storage(y.dtype) + "\n#define EPILOGUE " + epilogue + "\n";
  out.parts = {text::tail};
  out.sizes = {shape.elements, shape.line, shape.stride, shape.inner, shape.channels};
  out.pointers = {y, bias, residual};
  out.reads_words = false;
  out.launches = {{"tail", (shape.elements + kThreads * kEach - 1) / (kThreads * kEach), static_cast<int>(kThreads)}};
  out.what = "bias +" + std::to_string(anchor.post_ops.size());
  return out;
}

}  // namespace keirin::gpu
