// SPDX-License-Identifier: Apache-2.0
//
// A bias, and what follows it, as a kernel behind a convolution or a product whose library fuses none. One pass over the result for all
// of it.
#pragma once

#include <optional>
#include <string>

#include "plugins/gpu/text_step.h"

namespace keirin::gpu {

// The result in memory: lines of `line` elements, `stride` elements apart, of `elements` in all; `inner` elements of a channel lie side by
// side. The residual, if any, lies as the result.
struct TailShape {
  int64_t elements = 0, line = 0, stride = 0, inner = 1, channels = 1;
};

// The result as the library left it, rounded to its dtype, is what the bias is added to. Null with the reason.
std::optional<TextKernel> library_tail(const codegen::AnchorDesc& anchor, const TailShape& shape, std::string& why_not);

}  // namespace keirin::gpu
