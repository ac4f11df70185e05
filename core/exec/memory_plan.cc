// SPDX-License-Identifier: Apache-2.0
#include "core/exec/memory_plan.h"

#include <algorithm>
#include <numeric>

namespace keirin {
namespace {

int64_t align_up(int64_t n) { return (n + kPlanAlignment - 1) / kPlanAlignment * kPlanAlignment; }

}  // namespace

MemoryPlan plan_memory(const std::vector<Lifetime>& lifetimes) {
  std::vector<size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return lifetimes[a].bytes > lifetimes[b].bytes; });

  MemoryPlan plan;
  plan.offsets.assign(lifetimes.size(), 0);
  std::vector<size_t> placed;  // ascending by offset
  for (size_t i : order) {
    const Lifetime& value = lifetimes[i];
    const int64_t bytes = align_up(value.bytes);
    int64_t best = -1, best_gap = 0, cursor = 0;
    for (size_t j : placed) {
      const Lifetime& other = lifetimes[j];
      if (other.last < value.first || value.last < other.first) continue;
      const int64_t gap = plan.offsets[j] - cursor;
      if (gap >= bytes && (best < 0 || gap < best_gap)) best = cursor, best_gap = gap;
      cursor = std::max(cursor, plan.offsets[j] + align_up(other.bytes));
    }
    plan.offsets[i] = best >= 0 ? best : cursor;
    plan.total_bytes = std::max(plan.total_bytes, plan.offsets[i] + bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), i,
                                   [&](size_t a, size_t b) { return plan.offsets[a] < plan.offsets[b]; }),
                  i);
  }
  return plan;
}

}  // namespace keirin
