// SPDX-License-Identifier: Apache-2.0
//
// A fact is never a guess: of drawn graphs every value is computed by the reference plugin, and each element must lie in the range that
// the pass `infer` wrote down, and be the number that splat_of tells. Every row of moves, factories and reductions takes part, over
// dtypes and over numbers that a range might be wrong at.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/ir/text.h"
#include "core/passes/facts.h"
#include "core/passes/pass.h"
#include "tests/unit/passes/drawn_graph.h"

namespace keirin {
namespace {

std::map<OpCode, int> known, splats;  // how often something was known, by row

void check(uint32_t seed) {
  testing::Drawn drawn(seed);
  PassContext context;
  context.evaluator = &drawn.evaluator();
  Graph graph = drawn.graph();
  ASSERT_TRUE(passes::infer(graph, context).ok());
  std::vector<ValueId> made;
  for (ValueId v = 0; v < graph.values.size(); ++v)
    if (graph.values[v].kind == ValueKind::kResult) made.push_back(v);
  const auto got = drawn.compute(graph, made);
  ASSERT_TRUE(got.ok()) << got.status().text();
  for (size_t k = 0; k < made.size(); ++k) {
    const ValueId v = made[k];
    const Op& op = graph.ops[graph.values[v].producer];
    const std::optional<Range> range = graph.values[v].range;
    const std::optional<double> splat = splat_of(graph, v);
    known[op.code] += range.has_value();
    splats[op.code] += splat.has_value();
    for (double x : (*got)[k]) {
      EXPECT_TRUE(!range || (std::isnan(x) ? range->may_be_nan : range->low <= x && x <= range->high))
          << x << " of [" << range->low << ", " << range->high << "]";
      EXPECT_TRUE(!splat || x == *splat || (std::isnan(x) && std::isnan(*splat))) << x << ", told " << *splat;
    }
    ASSERT_FALSE(::testing::Test::HasFailure())
        << "seed " << seed << ", " << find_row(op.code)->name << " of " << dtype_name(graph.type(v).dtype);
  }
}

TEST(Infer, WhatIsKnownOfAValueHoldsForEveryElement) {
  for (uint32_t seed = 0; seed < 1500 && !HasFatalFailure(); ++seed) check(seed);
  for (OpCode code : {OpCode::k_pad, OpCode::k_cat, OpCode::k_slice, OpCode::k_flip, OpCode::k_slice_scatter, OpCode::k_index_reduce,
                      OpCode::k_cumsum, OpCode::k_sum, OpCode::k_argmax, OpCode::k_take, OpCode::k_cast, OpCode::k_full})
    EXPECT_GT(known[code], 10) << find_row(code)->name;
  for (OpCode code : {OpCode::k_full, OpCode::k_expand, OpCode::k_slice, OpCode::k_cast})
    EXPECT_GT(splats[code], 10) << find_row(code)->name;
}

// Nothing is known of what no element gave, and that is not a reason to stop.
TEST(Infer, ReductionsOfNothingAndOfOne) {
  Result<Graph> g = parse(R"(graph {
    %x = input 0 : f32[0,4]
    %y = input 1 : f32[3,0]
    %one = full() {sizes=[1], value_d=2.5, dtype=f32} : f32[1]
    %a = amax(%x) {dims=[1], keepdim=false} : f32[0]
    %b = sum(%y) {dims=[1], keepdim=false} : f32[3]
    %c = amax(%one) {dims=[0], keepdim=false} : f32[]
    output %a
    output %b
    output %c
  })");
  ASSERT_TRUE(g.ok()) << g.status().text();
  PassContext context;
  ASSERT_TRUE(passes::infer(*g, context).ok());
  const std::optional<Range> range = g->values[g->outputs[2].value].range;
  ASSERT_TRUE(range.has_value()) << "one element is its own maximum";
  EXPECT_EQ(range->low, 2.5);
  EXPECT_EQ(range->high, 2.5);
}

}  // namespace
}  // namespace keirin
