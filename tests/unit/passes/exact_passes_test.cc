// SPDX-License-Identifier: Apache-2.0
//
// Exact is exact: of drawn graphs the reference plugin computes every value before and after the passes that may change no bit, and each
// element is the same number.
#include <gtest/gtest.h>

#include <cmath>

#include "core/ir/text.h"
#include "core/passes/pass.h"
#include "tests/unit/passes/drawn_graph.h"

namespace keirin {
namespace {

// `share`: of the values, those that are outputs; few of them leave more to fold and to drop.
void expect_same_elements(const std::vector<const char*>& passes, unsigned share, size_t fewer) {
  size_t ops_before = 0, ops_after = 0;
  for (uint32_t seed = 0; seed < 1500; ++seed) {
    testing::Drawn drawn(seed);
    PassContext context;
    context.evaluator = &drawn.evaluator();
    Graph graph = drawn.graph();
    std::vector<ValueId> made;
    for (ValueId v = 0; v < graph.values.size(); ++v)
      if (graph.values[v].kind == ValueKind::kResult && (v % share == seed % share || v + 1 == graph.values.size()))
        made.push_back(v), graph.outputs.push_back({v, kNone, kNone});
    const Graph before = graph;
    const auto wanted = drawn.compute(before, made);
    ASSERT_TRUE(wanted.ok()) << wanted.status().text();
    for (const char* pass : passes) {
      const Status status = find_pass(pass)->run(graph, context);
      ASSERT_TRUE(status.ok()) << pass << ": " << status.text();
    }
    std::vector<ValueId> now;
    for (const Output& o : graph.outputs) now.push_back(o.value);
    const auto got = drawn.compute(graph, now);
    ASSERT_TRUE(got.ok()) << got.status().text() << print(graph);
    for (size_t k = 0; k < made.size(); ++k) {
      ASSERT_EQ((*got)[k].size(), (*wanted)[k].size());
      for (size_t i = 0; i < (*got)[k].size(); ++i) {
        const double a = (*got)[k][i], b = (*wanted)[k][i];
        ASSERT_TRUE((std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b)))
            << "seed " << seed << ", output " << k << ", element " << i << ": " << a << ", before " << b << "\n"
            << print(before) << print(graph);
      }
    }
    ops_before += before.ops.size(), ops_after += graph.ops.size();
  }
  EXPECT_LT(ops_after, ops_before - fewer) << "else nothing was done";
}

TEST(ExactPasses, SimplifyChangesNoElement) { expect_same_elements({"normalise", "infer", "simplify"}, 1, 500); }
TEST(ExactPasses, FoldingChangesNoElement) {
  expect_same_elements({"fold_constants"}, 1, 500);
  expect_same_elements({"fold_constants"}, 4, 500);
}
TEST(ExactPasses, AllInOrderChangeNoElement) {
  expect_same_elements({"normalise", "infer", "simplify", "fold_constants", "recognise", "merge_siblings"}, 5, 500);
}

}  // namespace
}  // namespace keirin
