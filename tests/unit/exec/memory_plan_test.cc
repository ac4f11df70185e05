// SPDX-License-Identifier: Apache-2.0
#include "core/exec/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace keirin {
namespace {

TEST(MemoryPlan, SharesBytesOnlyBetweenDisjointLifetimes) {
  MemoryPlan plan = plan_memory({{1000, 0, 1}, {1000, 2, 3}, {1000, 1, 2}});
  EXPECT_EQ(plan.offsets[0], plan.offsets[1]);
  EXPECT_NE(plan.offsets[0], plan.offsets[2]);
  EXPECT_EQ(plan.total_bytes, 2048);
}

// Every other value is gone at the time 5 and leaves a gap.
TEST(MemoryPlan, TakesTheSmallestGapAndOfEqualOnesTheFirst) {
  const MemoryPlan smallest = plan_memory({{8192, 0, 1}, {8192, 0, 9}, {4096, 0, 1}, {4096, 0, 9}, {1024, 5, 5}});
  EXPECT_EQ(smallest.offsets[4], smallest.offsets[2]);
  const MemoryPlan equal = plan_memory({{4096, 0, 1}, {4096, 0, 9}, {4096, 0, 1}, {4096, 0, 9}, {1024, 5, 5}});
  EXPECT_EQ(equal.offsets[4], equal.offsets[0]);
}

TEST(MemoryPlan, RandomLifetimesNeverOverlap) {
  std::mt19937 rng(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<Lifetime> values;
    for (int i = 0; i < 40; ++i) {
      int32_t first = static_cast<int32_t>(rng() % 30);
      values.push_back({static_cast<int64_t>(rng() % 5000), first, first + static_cast<int32_t>(rng() % 10)});
    }
    MemoryPlan plan = plan_memory(values);
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(plan.offsets[i] % kPlanAlignment, 0);
      EXPECT_LE(plan.offsets[i] + values[i].bytes, plan.total_bytes);
      for (size_t j = 0; j < i; ++j) {
        bool together = values[i].first <= values[j].last && values[j].first <= values[i].last;
        bool overlap = plan.offsets[i] < plan.offsets[j] + values[j].bytes && plan.offsets[j] < plan.offsets[i] + values[i].bytes;
        EXPECT_FALSE(together && overlap && values[i].bytes && values[j].bytes) << i << " and " << j;
      }
    }
  }
}

}  // namespace
}  // namespace keirin
