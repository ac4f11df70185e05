// SPDX-License-Identifier: Apache-2.0
//
// The prior behind fusion: what a kernel reads, writes and computes, over the target's rates. Only measuring decides later; here
// it only has to order alternatives.
#pragma once

#include <string>

#include "plugins/codegen/backend.h"

namespace keirin::codegen {

// Nanoseconds by the prior: launch + max(bytes, flops, special functions) over their rates.
double price(const Kernel& kernel, const TargetInfo& target);
// Why the kernel exceeds a limit of the target, or empty.
std::string veto(const Kernel& kernel, const TargetInfo& target);

}  // namespace keirin::codegen
