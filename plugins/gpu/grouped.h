// SPDX-License-Identifier: Apache-2.0
//
// Convolutions of small groups of channels, of one channel first of all: bound by memory, and in f32 the libraries' kernels take several
// times what reading and writing the images takes. Where operands may be rounded, larger groups are left to the libraries' matrix units.
#pragma once

#include <optional>
#include <string>

#include "plugins/gpu/device.h"
#include "plugins/gpu/numerics.h"
#include "plugins/gpu/text_step.h"

namespace keirin::gpu {

// The anchor's kernel with its post-ops, where it is such a convolution with channels innermost; or none with the reason.
std::optional<TextKernel> grouped_kernel(const codegen::AnchorDesc& anchor, const Gpu& gpu, const Numerics& numerics,
                                         std::string& why_not);

}  // namespace keirin::gpu
