// SPDX-License-Identifier: Apache-2.0
//
// Convolutions as anchors, transposed ones, and the gradients of their weights: f32, bf16 and f16 in one to three spatial axes, with bias,
// per-channel scale and shift, a residual and an activation as epilogue. An AnchorDesc becomes a ConvProblem (plan.h); a 1x1 one also a
// product, where that is faster.
// Layouts are those of the description: nothing is moved here.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugins/codegen/backend.h"
#include "plugins/gpu/numerics.h"
#include "plugins/gpu/plan.h"
#include "plugins/gpu/text_step.h"

namespace keirin::gpu {

// The problem that an anchor with its post-ops states, by its shapes alone; none with the reason.
std::optional<ConvProblem> conv_problem(const codegen::AnchorDesc& anchor, const Numerics& numerics, std::string& why_not);
// The same product as a linear anchor: 1x1, stride 1, dense channels-last. Of its epilogue, what lies as the result does in rows too.
std::optional<codegen::AnchorDesc> conv_as_linear(const codegen::AnchorDesc& anchor);

// Who does what of a convolution: all of it the library, or the bias and what follows a kernel behind it (library_tail.h), where the
// library does not fuse them.
struct ConvShares {
  ConvProblem problem;
  std::optional<TextKernel> tail;
};
// `library`: null asks the shapes only, for machines without a device. None with the reason where nobody does it.
std::optional<ConvShares> conv_shares(const codegen::AnchorDesc& anchor, const Numerics& numerics, const PlanLibrary* library,
                                      std::string& why_not);
// `cache_bytes`: of the device's last cache, in which a small residual is still found.
bool conv_takes_post_op(const codegen::AnchorDesc& anchor, const codegen::PostOp& post, const Numerics& numerics,
                        const PlanLibrary* library, int64_t cache_bytes);
// In the order of a plan's addresses: x, w, y of the problem, bias, operands of the epilogue.
std::vector<codegen::TensorDesc> conv_tensors(const codegen::AnchorDesc& anchor);
// `seconds`: what the library's plan took with warm caches, 0 if it was not timed. `load`: TextKernel's. Throws kit::Error.
std::unique_ptr<codegen::Step> make_conv(const codegen::AnchorDesc& anchor, const ConvShares& shares, const PlanLibrary& library,
                                         const CodeTarget& target, bool load, double* seconds = nullptr);

}  // namespace keirin::gpu
