// SPDX-License-Identifier: Apache-2.0
//
// Convolutions in which every channel has a filter of its own: bound by memory, and in f32 the libraries' kernels take several times
// what reading and writing the images takes.
#pragma once

#include <optional>
#include <string>

#include "plugins/gpu/device.h"
#include "plugins/gpu/numerics.h"
#include "plugins/gpu/text_step.h"

namespace keirin::gpu {

// The anchor's kernel with its post-ops, where it is such a convolution with channels innermost; or none with the reason.
std::optional<TextKernel> depthwise_kernel(const codegen::AnchorDesc& anchor, const Gpu& gpu, std::string& why_not);

}  // namespace keirin::gpu
