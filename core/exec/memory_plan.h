// SPDX-License-Identifier: Apache-2.0
//
// Offsets in one block for values with lifetimes: best fit, largest first. It plans the values that cross region borders; what
// lies inside an executable is the plugin's own plan.
#pragma once

#include <cstdint>
#include <vector>

namespace keirin {

struct Lifetime {
  int64_t bytes = 0;
  int32_t first = 0;  // step that writes it
  int32_t last = 0;   // last step that reads it, >= first
};

struct MemoryPlan {
  std::vector<int64_t> offsets;  // parallel to the lifetimes, multiples of kAlignment
  int64_t total_bytes = 0;
};

inline constexpr int64_t kPlanAlignment = 256;  // what LibTorch's CUDA allocator gives, enough for every vector width

// Values whose lifetimes [first, last] overlap never share bytes.
MemoryPlan plan_memory(const std::vector<Lifetime>& lifetimes);

}  // namespace keirin
