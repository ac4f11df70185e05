// SPDX-License-Identifier: Apache-2.0
//
// Offsets for the temps of an executable inside one workspace: best fit over liveness.
#pragma once

#include <cstdint>
#include <vector>

namespace keirin::codegen {

struct TempLife {
  int64_t bytes = 0;
  int first = 0;  // step that writes it first
  int last = 0;   // last step that touches it
};

struct MemoryPlan {
  std::vector<int64_t> offsets;  // one per temp
  int64_t total_bytes = 0;
};

// Temps whose lives overlap never overlap in memory. Offsets are multiples of `alignment`.
MemoryPlan plan_memory(const std::vector<TempLife>& temps, int64_t alignment);

}  // namespace keirin::codegen
