// SPDX-License-Identifier: Apache-2.0
//
// What levels promise, on random graphs with random classes: every edge is kept, and the sweep up gathers. The least levels that the
// edges allow are computed here by themselves: lifting may join ops of a class, and may never part them.
#include "core/partition/levels.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tests/unit/ir/random_graph.h"

namespace keirin {
namespace {

// Producers of an op among those that take part, effects included.
std::vector<OpId> producers(const Graph& g, OpId op) {
  std::vector<OpId> out;
  for (ValueId v : g.ops[op].operands)
    if (v != kNone && g.values[v].producer != kNone) out.push_back(g.values[v].producer);
  OpId before = kNone;
  for (OpId p = 0; p < op; ++p)
    if (g.ops[p].effects) before = p;
  if (g.ops[op].effects && before != kNone) out.push_back(before);
  return out;
}

size_t gathered(const std::vector<uint32_t>& levels, const std::vector<uint32_t>& classes) {
  std::set<std::pair<uint32_t, uint32_t>> places;
  for (OpId op = 0; op < levels.size(); ++op)
    if (classes[op] != kEagerClass && classes[op] != kFloatingClass) places.emplace(classes[op], levels[op]);
  return places.size();
}

TEST(Levels, KeepEveryEdgeAndPartNobody) {
  int better = 0;
  for (uint32_t seed = 0; seed < 600; ++seed) {
    const Graph g = testing::random_graph(seed, {.num_ops = 30, .opaque = 0.1 + 0.1 * (seed % 4)});
    std::mt19937 random(seed);
    std::vector<uint32_t> classes(g.ops.size());
    for (OpId op = 0; op < g.ops.size(); ++op) {
      const bool eager = g.ops[op].code == OpCode::kOpaque || random() % 10 == 0;
      classes[op] = eager                                      ? kEagerClass
                    : random() % 20 == 0 && !g.ops[op].effects ? kFloatingClass
                                                               : static_cast<uint32_t>(random() % (1 + seed % 3));
    }
    const std::vector<uint32_t> levels = assign_levels(g, classes);
    std::vector<uint32_t> least(g.ops.size());
    ASSERT_EQ(levels.size(), g.ops.size());
    for (OpId op = 0; op < g.ops.size(); ++op) {
      if (classes[op] == kFloatingClass) continue;
      for (OpId p : producers(g, op)) {
        if (classes[p] == kFloatingClass) continue;
        const uint32_t gap = classes[p] != classes[op];
        ASSERT_GE(levels[op], levels[p] + gap) << "seed " << seed << ", op " << op << " after " << p;
        least[op] = std::max(least[op], least[p] + gap);
      }
    }
    const size_t now = gathered(levels, classes), before = gathered(least, classes);
    ASSERT_LE(now, before) << "seed " << seed;
    better += now < before;
  }
  EXPECT_GT(better, 60);
}

}  // namespace
}  // namespace keirin
