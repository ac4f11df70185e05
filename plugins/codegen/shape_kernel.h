// SPDX-License-Identifier: Apache-2.0
//
// From a Draft to a Kernel: which axes merge, which one is the vector axis, row or column class, and the order of stages. And
// what the kernel costs by the target's figures.
#pragma once

#include "plugins/codegen/backend.h"
#include "plugins/codegen/draft.h"

namespace keirin::codegen {

// `short_inner`: TargetInfo's.
Kernel shape_kernel(const Draft& draft, int short_inner = 0);

// Nanoseconds by the prior: launch + max(bytes, flops, special functions) over their rates.
double price(const Kernel& kernel, const TargetInfo& target);
// Why the kernel exceeds a limit of the target, or empty.
std::string veto(const Kernel& kernel, const TargetInfo& target);

int64_t iterations(const Kernel& kernel);  // points of all axes

}  // namespace keirin::codegen
