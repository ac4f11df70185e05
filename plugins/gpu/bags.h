// SPDX-License-Identifier: Apache-2.0
//
// Bags of rows summed by offset, several tables in one launch where their bags are as many and as wide.
#pragma once

#include <optional>
#include <span>

#include "plugins/gpu/text_step.h"

namespace keirin::gpu {

inline constexpr size_t kMostTables = 32;  // of one launch

// Whether two embedding_bag anchors can share a launch, by their shapes.
bool bags_alike(const codegen::AnchorDesc& a, const codegen::AnchorDesc& b);
// One kernel for anchors that are alike, or none with the reason.
std::optional<TextKernel> bags_kernel(std::span<const codegen::AnchorDesc* const> anchors, std::string& why_not);

}  // namespace keirin::gpu
