// SPDX-License-Identifier: Apache-2.0
//
// A cuDNN plan as a step: addresses of tensors in the plan's order, and a workspace.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "cuda/cudnn.h"
#include "plugins/codegen/backend.h"

namespace keirin::cuda {

// `what` and `more` are for people; the sizes of the first two tensors stand between them.
std::unique_ptr<codegen::Step> make_plan_step(const std::string& what, std::span<const codegen::TensorDesc> tensors, const std::string& more,
                                              std::shared_ptr<const LibraryPlan> plan);

}  // namespace keirin::cuda
