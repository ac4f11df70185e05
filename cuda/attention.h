// SPDX-License-Identifier: Apache-2.0
//
// Attention in any strides (the thirds of a merged projection are read in place); scores are never stored. By cuDNN where there is
// no mask and there are many queries; else by kernels of our own: a bool or additive mask that may repeat along any axis, few
// queries against a long cache, small f32.
#pragma once

#include <optional>

#include "cuda/cudnn.h"
#include "cuda/text_step.h"

namespace keirin::cuda {

// The kernel for the anchor on an architecture ("sm_90") with so many multiprocessors, or none with the reason.
std::optional<TextKernel> attention_kernel(const codegen::AnchorDesc& anchor, const std::string& arch, int num_units, std::string& why_not);

// The problem that the anchor states for cuDNN, or none with the reason.
std::optional<HeadsProblem> heads_problem(const codegen::AnchorDesc& anchor, std::string& why_not);
std::unique_ptr<codegen::Step> make_heads(const codegen::AnchorDesc& anchor);

}  // namespace keirin::cuda
