// SPDX-License-Identifier: Apache-2.0
//
// Attention in any strides (the thirds of a merged projection are read in place); scores are never stored. By a library where there is
// no mask and there are many queries; else by kernels of our own: a bool or additive mask that may repeat along any axis, few
// queries against a long cache, small f32.
#pragma once

#include <optional>

#include "plugins/gpu/device.h"
#include "plugins/gpu/plan.h"
#include "plugins/gpu/text_step.h"

namespace keirin::gpu {

// The kernel for the anchor on a device, or none with the reason.
std::optional<TextKernel> attention_kernel(const codegen::AnchorDesc& anchor, const Gpu& gpu, std::string& why_not);

// The problem that the anchor states for a library, or none with the reason.
std::optional<HeadsProblem> heads_problem(const codegen::AnchorDesc& anchor, std::string& why_not);
std::unique_ptr<codegen::Step> make_heads(const codegen::AnchorDesc& anchor, const HeadsProblem& problem, const PlanLibrary& library);

}  // namespace keirin::gpu
