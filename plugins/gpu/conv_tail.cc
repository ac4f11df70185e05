// SPDX-License-Identifier: Apache-2.0
#include "plugins/gpu/conv_tail.h"

#include <limits>

#include "plugins/gpu/text.h"
#include "plugins/kit/tables.h"

namespace keirin::gpu {
namespace {

constexpr int64_t kThreads = 256, kEach = 8;  // of a block and a thread, as the text has them

}  // namespace

std::optional<TextKernel> conv_tail(const codegen::AnchorDesc& anchor, const ConvProblem& problem, std::string& why_not) {
  const auto no = [&](const char* why) { return why_not = why, std::nullopt; };
  const codegen::TensorDesc& y = anchor.results[0];
  if (anchor.operands.size() < 3 || !anchor.operands[2].present()) return no("no bias: what follows is added next door");
  if (anchor.operands[2].dtype != y.dtype) return no("a bias of another dtype");
  int64_t elements = 1;
  for (int64_t size : problem.y.sizes) elements *= size;
  const int64_t channels = problem.y.sizes[1], dtype_bytes = float_bytes(y.dtype);
  if (bytes_of(problem.y) != elements * dtype_bytes) return no("a result with gaps");
  if (elements > std::numeric_limits<int32_t>::max() - kThreads * kEach) return no("a result that a launch does not count");
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
  out.text = std::string("#define STORAGE ") + float_storage(y.dtype) + "\n#define EPILOGUE " + epilogue + "\n" + std::string(text::tail);
  out.sizes = {elements, problem.y.strides[1], channels};
  out.pointers = {y, anchor.operands[2], residual};
  out.reads_words = false;
  out.launches = {{"tail", (elements + kThreads * kEach - 1) / (kThreads * kEach), static_cast<int>(kThreads)}};
  out.what = "bias +" + std::to_string(anchor.post_ops.size());
  return out;
}

}  // namespace keirin::gpu
