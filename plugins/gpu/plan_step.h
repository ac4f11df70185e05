// SPDX-License-Identifier: Apache-2.0
//
// A library's plan as a step: addresses of tensors in the plan's order, and a workspace; before it, perhaps, a step
// that makes some of them, and behind it one that works on its result.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "plugins/gpu/plan.h"
#include "plugins/codegen/backend.h"

namespace keirin::gpu {

// Runs before a plan, in the same step, and leaves the plan's first tensors at these bytes of its own workspace.
struct Prologue {
  std::unique_ptr<codegen::Step> step;
  std::vector<int64_t> at;
};

// `what` and `more` are for people; the sizes of the first two tensors stand between them. With a prologue, the first tensors are
// what it reads. `after` has no workspace.
std::unique_ptr<codegen::Step> make_plan_step(const std::string& what, std::span<const codegen::TensorDesc> tensors,
                                              const std::string& more, std::shared_ptr<const LibraryPlan> plan, Prologue before = {},
                                              std::unique_ptr<codegen::Step> after = nullptr);

}  // namespace keirin::gpu
