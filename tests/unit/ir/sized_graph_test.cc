// SPDX-License-Identifier: Apache-2.0
#include "core/ir/sized_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "core/ir/text.h"

namespace keirin {
namespace {

using Sizes = std::vector<int64_t>;

// Numbers of every kind, and forms that programs have: a product, a sum, a share, one less, reciprocals in both precisions.
Graph graph_at(const Sizes& sizes) {
  const int64_t b = sizes[0], n = sizes[1];
  Graph g;
  const ValueId x = g.add_input({DType::k_f32, {b, n, 8}, {n * 8, 8, 1}}, 0, "x");
  const OpId flat = g.add_op(OpCode::k_reshape, {x}, {{AttrKey::k_sizes, Dims{b * n, 8}}}, {{DType::k_f32, {b * n, 8}, {8, 1}}});
  const OpId part = g.add_op(OpCode::k_slice, {g.ops[flat].results[0]},
                             {{AttrKey::k_dim, int64_t{0}}, {AttrKey::k_start, n / 2}, {AttrKey::k_end, b * n}},
                             {{DType::k_f32, {b * n - n / 2, 8}, {8, 1}}});
  const OpId counted = g.add_op(OpCode::k_iota, {}, {{AttrKey::k_sizes, Dims{n}}}, {{DType::k_i64, {n}, {1}}});
  const OpId last = g.add_op(OpCode::k_full, {}, {{AttrKey::k_value_d, static_cast<double>(n - 1)}}, {{DType::k_f64, {}, {}}});
  const OpId share = g.add_op(OpCode::k_full, {}, {{AttrKey::k_value_d, 1 / static_cast<double>(n)}}, {{DType::k_f64, {}, {}}});
  const OpId narrow =
      g.add_op(OpCode::k_full, {}, {{AttrKey::k_value_d, static_cast<double>(1 / static_cast<float>(b * n))}}, {{DType::k_f32, {}, {}}});
  for (const OpId op : {part, counted, last, share, narrow}) g.outputs.push_back({g.ops[op].results[0], kNone, kNone});
  return g;
}

const std::vector<Sizes> kLearned = {{3, 14}, {5, 32}, {7, 128}, {2, 6}, {11, 60}, {64, 512}, {9, 22}};

// With what passes know of its values.
Graph with_ranges_at(const Sizes& sizes) {
  Graph g = graph_at(sizes);
  g.values[1].range = Range{0, std::log(static_cast<double>(sizes[1])), sizes[1] > 100};
  return g;
}

Result<SizedGraph> learn(const std::function<Graph(const Sizes&)>& at, const std::vector<Sizes>& sizes = kLearned) {
  std::vector<Graph> graphs;
  for (const Sizes& each : sizes) graphs.push_back(at(each));
  std::vector<const Graph*> all;
  for (const Graph& graph : graphs) all.push_back(&graph);
  return SizedGraph::of(sizes, all);
}

TEST(SizedGraph, IsTheGraphAtSizesItWasNotLearnedAt) {
  const auto learned = learn(with_ranges_at);
  ASSERT_TRUE(learned.ok()) << learned.status().text();
  EXPECT_LT(learned->num_polynomials(), 12u) << "numbers that follow the same are one";
  for (int64_t b = 2; b < 40; ++b)
    for (int64_t n = 4; n < 600; n += 2) {
      if (b == n) continue;
      const auto graph = learned->at({b, n});
      ASSERT_TRUE(graph.ok()) << graph.status().text();
      ASSERT_EQ(*graph, graph_at({b, n})) << print(*graph);
    }
}

TEST(SizedGraph, RefusesWhatWouldNotBeWhole) {
  const auto learned = learn(graph_at);
  ASSERT_TRUE(learned.ok());
  const auto odd = learned->at({3, 15});
  ASSERT_FALSE(odd.ok()) << "a half of it was whole at all sizes that were learned";
  EXPECT_NE(odd.status().text().find("whole"), std::string::npos);
  EXPECT_FALSE(learned->at({int64_t{1} << 40, int64_t{1} << 40}).ok());
  EXPECT_FALSE(learned->at({3}).ok());
}

TEST(SizedGraph, RefusesNumbersThatFollowTheSizesOtherwise) {
  const auto with = [](const std::function<int64_t(int64_t, int64_t)>& number) {
    return learn([&](const Sizes& sizes) {
      Graph g = graph_at(sizes);
      g.ops[1].set(AttrKey::k_end, number(sizes[0], sizes[1]));
      return g;
    });
  };
  for (const auto& number : {std::function<int64_t(int64_t, int64_t)>([](int64_t, int64_t n) { return std::min<int64_t>(n, 100); }),
                             std::function<int64_t(int64_t, int64_t)>([](int64_t, int64_t n) { return n / 4; }),
                             std::function<int64_t(int64_t, int64_t)>([](int64_t b, int64_t n) { return b % 3 + n; }),
                             std::function<int64_t(int64_t, int64_t)>([](int64_t b, int64_t n) { return b + n + b * n; })}) {
    const auto learned = with(number);
    ASSERT_FALSE(learned.ok());
    EXPECT_NE(learned.status().text().find("in no known way"), std::string::npos) << learned.status().text();
  }
}

TEST(SizedGraph, RefusesAnotherStructureAndSaysWhere) {
  const auto learned = learn([](const Sizes& sizes) {
    Graph g = graph_at(sizes);
    if (sizes[1] == 128) g.ops[1].operands = g.ops[0].operands;
    for (Op& op : g.ops) op.origin = "node " + std::to_string(op.results[0]);
    return g;
  });
  ASSERT_FALSE(learned.ok());
  EXPECT_NE(learned.status().text().find("another structure at other sizes: at node 2"), std::string::npos) << learned.status().text();
}

}  // namespace
}  // namespace keirin
