// SPDX-License-Identifier: Apache-2.0
//
// Products of a few rows by a large constant matrix: the time is that of reading the matrix once, so the kernel streams it, and
// the few rows stay in registers. What follows in the graph (bias, residual, activation) is applied before the store.
#pragma once

#include <optional>

#include "cuda/text_step.h"

namespace keirin::cuda {

// The kernel for a linear anchor of at most eight rows, or none with the reason.
std::optional<TextKernel> gemv_kernel(const codegen::AnchorDesc& anchor, int num_units, std::string& why_not);

}  // namespace keirin::cuda
