// SPDX-License-Identifier: Apache-2.0
//
// From a Draft to a Kernel: which axes merge, which one is the vector axis, row or column class, and the order of stages.
#pragma once

#include "plugins/codegen/backend.h"
#include "plugins/codegen/kernel/draft.h"

namespace keirin::codegen {

Kernel shape_kernel(const Draft& draft, const TargetInfo& target);

int64_t iterations(const Kernel& kernel);  // points of all axes

}  // namespace keirin::codegen
