// SPDX-License-Identifier: Apache-2.0
//
// Products of a few rows by a large constant matrix: the time is that of reading the matrix once, so the kernel streams it, and
// the few rows stay in registers. What follows in the graph (bias, residual, activation) is applied before the store.
#pragma once

#include <optional>
#include <span>

#include "plugins/gpu/device.h"
#include "plugins/gpu/text_step.h"

namespace keirin::gpu {

inline constexpr size_t kMostProducts = 4;  // of one launch

// Whether two linear anchors read the same few rows and may share a launch.
bool gemv_alike(const codegen::AnchorDesc& a, const codegen::AnchorDesc& b);
// One kernel for linear anchors that are alike, of at most two rows; or none with the reason.
std::optional<TextKernel> gemv_kernel(std::span<const codegen::AnchorDesc* const> anchors, const Gpu& gpu, std::string& why_not);

}  // namespace keirin::gpu
