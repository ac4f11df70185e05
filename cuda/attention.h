// SPDX-License-Identifier: Apache-2.0
//
// Attention of 16-bit heads in kernels of our own, where eager's flash kernel cannot go or would first want copies: any strides
// (the thirds of a merged projection are read in place), a bool or additive mask that may repeat along any axis, few queries
// against a long cache. Scores are never stored. Long sequences without a mask stay eager's.
#pragma once

#include <optional>

#include "cuda/text_step.h"

namespace keirin::cuda {

// The kernel for the anchor on an architecture ("sm_90") with so many multiprocessors, or none with the reason.
std::optional<TextKernel> attention_kernel(const codegen::AnchorDesc& anchor, const std::string& arch, int num_units, std::string& why_not);

}  // namespace keirin::cuda
