// SPDX-License-Identifier: Apache-2.0
//
// A call that was met, kept so that its kind can be decided about later, when its inputs are the caller's again or gone. Internal to
// core/api.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/services.h"
#include "core/base/status.h"

namespace keirin {

struct MetCall {
  std::vector<TensorSpec> specs;
  std::vector<TensorRef> inputs;     // copies; null: large numbers of no meaning, which are drawn anew
  std::vector<uintptr_t> alignment;  // of the inputs that were met

  int64_t bytes() const;             // of the copies
};

// A copy that lies as a caller's tensor does: a plan is for calls whose inputs are aligned to no less than those it was decided with.
Result<TensorRef> aligned_copy(TensorServices& services, const TensorRef& tensor, uintptr_t alignment);

// On a device the copies are enqueued on the caller's stream.
Result<MetCall> keep_call(const std::vector<TensorRef>& inputs, TensorServices& services);

}  // namespace keirin
