// SPDX-License-Identifier: Apache-2.0
//
// A bias, and what follows it, as a kernel behind a convolution whose library fuses no bias. One pass over the result for all of it.
#pragma once

#include <optional>
#include <string>

#include "plugins/gpu/plan.h"
#include "plugins/gpu/text_step.h"

namespace keirin::gpu {

// `problem`: conv_problem of the anchor. The result as the library left it, rounded to its dtype, is what the bias is added to.
std::optional<TextKernel> conv_tail(const codegen::AnchorDesc& anchor, const ConvProblem& problem, std::string& why_not);

}  // namespace keirin::gpu
