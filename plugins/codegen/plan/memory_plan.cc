// SPDX-License-Identifier: Apache-2.0
//
// Largest temps first, each into the smallest gap between those already placed that live at the same time.
#include "plugins/codegen/plan/memory_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "abi/planted.h"

namespace keirin::codegen {

MemoryPlan plan_memory(const std::vector<TempLife>& temps, int64_t alignment) {
  MemoryPlan plan;
  plan.offsets.assign(temps.size(), 0);
  std::vector<int> order(temps.size()), placed;  // placed: by offset
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return temps[a].bytes > temps[b].bytes; });
  auto rounded = [&](int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; };
  for (int t : order) {
    int64_t size = rounded(temps[t].bytes), best = -1, smallest = std::numeric_limits<int64_t>::max(), end = 0;
    for (int other : placed) {
      if (temps[other].last < temps[t].first + (KRN_PLANTED(temps_overlap) ? 1 : 0) || temps[other].first > temps[t].last) continue;
      int64_t gap = plan.offsets[other] - end;
      if (gap >= size && gap < smallest) smallest = gap, best = end;
      end = std::max(end, plan.offsets[other] + rounded(temps[other].bytes));
    }
    plan.offsets[t] = best >= 0 ? best : end;
    plan.total_bytes = std::max(plan.total_bytes, plan.offsets[t] + size);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), t,
                                   [&](int a, int b) { return plan.offsets[a] < plan.offsets[b]; }),
                  t);
  }
  return plan;
}

}  // namespace keirin::codegen
