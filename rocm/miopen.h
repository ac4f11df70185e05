// SPDX-License-Identifier: Apache-2.0
//
// Convolutions by MIOpen, opened at run time and declared in our own words: immediate mode for a convolution alone, whose solutions are
// timed and the choice remembered (plugins/gpu/raced_plan.h); a fusion plan for one with a bias, an activation, or both. Attention
// is not asked of it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plugins/gpu/plan.h"

namespace keirin::rocm {

// The process's, over the HIP driver. Never destroyed: a context may be gone before the process ends. Any thread.
const gpu::PlanLibrary& miopen();

// The same over another driver and file, for tests. `device` names the kind of the current device.
std::unique_ptr<gpu::PlanLibrary> open_miopen(std::vector<const char*> files, const gpu::Driver& driver,
                                              std::function<std::string()> device);

}  // namespace keirin::rocm
