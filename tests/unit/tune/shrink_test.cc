// SPDX-License-Identifier: Apache-2.0
//
// What is left of a failing graph still fails, is well formed, and is as small as the reason for failing: here the reason is an op of some
// kind, or two one behind the other, which a predicate states. On random graphs, so that every op stands everywhere.
#include "core/tune/shrink.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/ir/text.h"
#include "core/ir/verify.h"
#include "tests/unit/ir/random_graph.h"

namespace keirin {
namespace {

bool holds(const Graph& g, OpCode code) {
  return std::any_of(g.ops.begin(), g.ops.end(), [&](const Op& op) { return op.code == code; });
}

bool holds_pair(const Graph& g, OpCode first, OpCode second) {
  for (const Op& op : g.ops)
    for (ValueId v : op.operands)
      if (op.code == second && v != kNone && g.values[v].producer != kNone && g.ops[g.values[v].producer].code == first) return true;
  return false;
}

// Whether somebody reads what each op computes.
bool all_read(const Graph& g) {
  std::vector<bool> read(g.values.size(), false);
  for (const Op& op : g.ops)
    for (ValueId v : op.operands)
      if (v != kNone) read[v] = true;
  for (const Output& output : g.outputs) read[output.value] = true;
  return std::all_of(g.ops.begin(), g.ops.end(), [&](const Op& op) {
    return std::any_of(op.results.begin(), op.results.end(), [&](ValueId v) { return read[v]; });
  });
}

int64_t largest_axis(const Graph& g) {
  int64_t most = 0;
  for (const Value& v : g.values)
    for (int64_t s : v.type.sizes) most = std::max(most, s);
  return most;
}

Graph without_state(uint32_t seed) {
  Graph g = testing::random_graph(seed, {.num_ops = 15, .opaque = 0});
  std::erase_if(g.outputs, [](const Output& o) { return o.updates != kNone; });
  for (Value& v : g.values)
    if (v.kind == ValueKind::kState) v.kind = ValueKind::kConstant;
  g.drop_dead();
  return g;
}

TEST(Shrink, LeavesTheReasonAndNothingElse) {
  int tried = 0;
  for (uint32_t seed = 0; seed < 120; ++seed)
    for (const OpCode code : {OpCode::k_exp, OpCode::k_tanh, OpCode::k_add, OpCode::k_matmul, OpCode::k_maximum}) {
      const Graph g = without_state(seed);
      if (!holds(g, code)) continue;
      int asked = 0;
      const Fails fails = [&](const Graph& each) {
        ++asked;
        EXPECT_TRUE(verify(each).ok()) << verify(each).text() << print(each);
        EXPECT_TRUE(all_read(each)) << "a try costs what it computes" << print(each);
        return holds(each, code);
      };
      const Graph small = shrink(g, fails);
      ASSERT_TRUE(verify(small).ok()) << print(small);
      ASSERT_EQ(small.ops.size(), 1u) << "seed " << seed << "\n" << print(g) << print(small);
      ASSERT_EQ(small.ops[0].code, code);
      ASSERT_EQ(small.outputs.size(), 1u);
      ASSERT_EQ(largest_axis(small), 1) << print(small);
      EXPECT_LE(asked, 400);
      ++tried;
    }
  EXPECT_GT(tried, 300);
}

TEST(Shrink, KeepsTwoThatOnlyFailTogether) {
  int tried = 0;
  for (uint32_t seed = 0; seed < 500; ++seed) {
    const Graph g = without_state(seed);
    if (!holds_pair(g, OpCode::k_exp, OpCode::k_add)) continue;
    const Graph small = shrink(g, [](const Graph& each) { return holds_pair(each, OpCode::k_exp, OpCode::k_add); });
    ASSERT_EQ(small.ops.size(), 2u) << "seed " << seed << "\n" << print(g) << print(small);
    ASSERT_TRUE(holds_pair(small, OpCode::k_exp, OpCode::k_add));
    ++tried;
  }
  EXPECT_GT(tried, 20);
}

TEST(Shrink, TriesNoMoreThanItMay) {
  const Graph g = without_state(5);
  for (int most : {0, 1, 2, 7, 30}) {
    int asked = 0;
    const Graph small = shrink(g, [&](const Graph& each) { return ++asked, each.ops.size() > 0; }, most);
    EXPECT_LE(asked, most);
    EXPECT_TRUE(verify(small).ok());
    EXPECT_TRUE(most > 0 || small == g);
  }
}

// What may only go once something else went is looked at again, also where no size can shrink.
TEST(Shrink, LooksAgainAtWhatItHadToKeep) {
  const Result<Graph> g = parse(R"(graph {
    %x = input 0 : i64[1]
    %a = abs(%x) : i64[1]
    %b = neg(%a) : i64[1]
    %c = mul(%b, %b) : i64[1]
    output %c
  })");
  ASSERT_TRUE(g.ok()) << g.status().text();
  const Graph small = shrink(*g, [](const Graph& each) {
    return holds(each, OpCode::k_mul) && (!holds(each, OpCode::k_abs) || holds(each, OpCode::k_neg));
  });
  EXPECT_EQ(small.ops.size(), 1u) << print(small);
}

// Where no operand has the result's sizes, an input takes its place, and what computed it goes.
TEST(Shrink, WhatAnInputReplacesIsNotComputed) {
  const Result<Graph> g = parse(R"(graph {
    %x = input 0 : f32[4,5]
    %y = input 1 : f32[5,6]
    %a = matmul(%x, %y) : f32[4,6]
    %z = input 2 : f32[6,3]
    %b = matmul(%a, %z) : f32[4,3]
    %c = relu(%b) : f32[4,3]
    output %c
  })");
  ASSERT_TRUE(g.ok()) << g.status().text();
  const Graph small = shrink(*g, [](const Graph& each) {
    EXPECT_TRUE(all_read(each)) << print(each);
    return holds(each, OpCode::k_relu);
  });
  EXPECT_EQ(small.ops.size(), 1u) << print(small);
}

}  // namespace
}  // namespace keirin
