// SPDX-License-Identifier: Apache-2.0
//
// The numbers behind folding: conv followed by batch norm equals the folded conv, and the limits hold.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/ir/text.h"
#include "core/passes/check.h"
#include "core/passes/pass.h"
#include "tests/unit/passes/fake_evaluator.h"

namespace keirin {
namespace {

Graph parsed(const char* text) {
  Result<Graph> g = parse(text);
  EXPECT_TRUE(g.ok()) << g.status().text();
  EXPECT_TRUE(check(*g).ok()) << check(*g).text();
  return *g;
}

constexpr const char* kConvNorm = R"(graph {
  %x = input 0 : f32[1,1,2,2]
  %w = constant 0 : f32[2,1,1,1]
  %b = constant 1 : f32[2]
  %gain = constant 2 : f32[2]
  %beta = constant 3 : f32[2]
  %mean = constant 4 : f32[2]
  %var = constant 5 : f32[2]
  %c = conv(%x, %w, %b) {stride=[1,1], padding=[0,0], dilation=[1,1], groups=1, transposed=false, output_padding=[0,0]} : f32[1,2,2,2]
  %n = batch_norm(%c, %gain, %beta, %mean, %var) {eps=1e-05} : f32[1,2,2,2]
  output %n
})";

testing::FakeEvaluator table() {
  testing::FakeEvaluator e;
  e.table = {{3, -5}, {1, 2}, {0.5, 4}, {10, 20}, {0.25, -3}, {2, 9}};
  return e;
}

TEST(FoldConstants, BatchNormIntoConvolution) {
  Graph g = parsed(kConvNorm);
  g.ops[0].origin = "conv2d @ stem", g.ops[1].origin = "batch_norm @ stem";
  testing::FakeEvaluator e = table();
  PassContext context;
  context.evaluator = &e;
  ASSERT_TRUE(passes::fold_constants(g, context).ok());
  ASSERT_TRUE(check(g).ok()) << check(g).text();
  ASSERT_EQ(g.ops.size(), 1u) << print(g);
  EXPECT_EQ(g.ops[0].origin, "conv2d @ stem") << "it is the convolution still";
  const std::vector<double>& w = e.table[g.values[g.ops[0].operands[1]].index];
  const std::vector<double>& b = e.table[g.values[g.ops[0].operands[2]].index];
  for (double x : {-2.0, 0.0, 0.7}) {
    for (size_t k = 0; k < 2; ++k) {  // a 1x1 convolution of one channel: the pixel says it all
      double conv = e.table[0][k] * x + e.table[1][k];
      double want = (conv - e.table[4][k]) / std::sqrt(e.table[5][k] + 1e-5) * e.table[2][k] + e.table[3][k];
      EXPECT_NEAR(w[k] * x + b[k], want, 1e-5);
    }
  }
}

// The output channels of a transposed convolution are axis 1 of its weight.
TEST(FoldConstants, BatchNormIntoTransposedConvolution) {
  Graph g = parsed(R"(graph {
  %x = input 0 : f32[1,2,1,1]
  %w = constant 0 : f32[2,3,1,1]
  %mean = constant 1 : f32[3]
  %var = constant 2 : f32[3]
  %c = conv(%x, %w, _) {stride=[1,1], padding=[0,0], dilation=[1,1], groups=1, transposed=true, output_padding=[0,0]} : f32[1,3,1,1]
  %n = batch_norm(%c, _, _, %mean, %var) {eps=0} : f32[1,3,1,1]
  output %n
})");
  testing::FakeEvaluator e;
  e.table = {{1, 2, 3, 4, 5, 6}, {0, 8, 0}, {1, 4, 0.25}};
  PassContext context;
  context.evaluator = &e;
  ASSERT_TRUE(passes::fold_constants(g, context).ok());
  ASSERT_EQ(g.ops.size(), 1u) << print(g);
  EXPECT_EQ(e.table[g.values[g.ops[0].operands[1]].index], (std::vector<double>{1, 1, 6, 4, 2.5, 12}));
  EXPECT_EQ(e.table[g.values[g.ops[0].operands[2]].index], (std::vector<double>{0, -4, 0}));
}

TEST(FoldConstants, BatchNormStaysWhereFoldingWouldChangeMore) {
  auto num_ops = [](const std::string& text, Numerics numerics) {
    Graph g = parsed(text.c_str());
    testing::FakeEvaluator e = table();
    PassContext context;
    context.evaluator = &e;
    context.numerics = numerics;
    EXPECT_TRUE(passes::fold_constants(g, context).ok());
    return g.ops.size();
  };
  std::string text = kConvNorm;
  EXPECT_EQ(num_ops(text, Numerics::kStrict), 2u);
  std::string read_twice = text;
  read_twice.insert(read_twice.rfind('}'), "  output %c\n");
  EXPECT_EQ(num_ops(read_twice, Numerics::kDefault), 2u);
}

// Constants of the one op of that code, by the operand that leads to one through views.
const std::vector<double>& factor_of(const Graph& g, const testing::FakeEvaluator& e, OpCode code) {
  static const std::vector<double> none;
  for (const Op& op : g.ops) {
    if (op.code != code) continue;
    ValueId v = op.operands[1];
    while (g.values[v].producer != kNone) v = g.ops[g.values[v].producer].operands[0];
    if (g.values[v].kind == ValueKind::kConstant) return e.table[g.values[v].index];
  }
  return none;
}

TEST(FoldConstants, NarrowBatchNormBecomesAScaleAndAShift) {
  std::string text = kConvNorm;
  for (size_t at; (at = text.find("f32")) != std::string::npos;) text.replace(at, 3, "bf16");
  Graph g = parsed(text.c_str());
  testing::FakeEvaluator e = table();
  PassContext context;
  context.evaluator = &e;
  ASSERT_TRUE(passes::fold_constants(g, context).ok());
  ASSERT_TRUE(check(g).ok()) << check(g).text();
  ASSERT_EQ(g.ops[0].code, OpCode::k_conv) << print(g);
  EXPECT_EQ(g.values[g.ops[0].operands[1]].index, 0u) << "the weight is the model's own";
  const std::vector<double>& scale = factor_of(g, e, OpCode::k_mul);
  const std::vector<double>& shift = factor_of(g, e, OpCode::k_add);
  ASSERT_EQ(scale.size(), 2u) << print(g);
  ASSERT_EQ(shift.size(), 2u) << print(g);
  for (double conv : {-2.0, 0.0, 0.7})
    for (size_t k = 0; k < 2; ++k)
      EXPECT_NEAR(conv * scale[k] + shift[k], (conv - e.table[4][k]) / std::sqrt(e.table[5][k] + 1e-5) * e.table[2][k] + e.table[3][k],
                  1e-5);
}

// Weights that are normed and then reshaped (weight standardisation): the convolution reads a constant, not a view of one. A reshape of
// what the file holds stays a view.
TEST(FoldConstants, WhatIsComputedIsKeptInTheSizesItIsReadIn) {
  Graph g = parsed(R"(graph {
  %x = input 0 : f32[1,1,2,2]
  %w = constant 0 : f32[2,1,1,1]
  %v = constant 1 : f32[2]
  %flat = reshape(%w) {sizes=[1,2]} : f32[1,2]
  %row = reshape(%v) {sizes=[1,2]} : f32[1,2]
  %m = mul(%flat, %row) : f32[1,2]
  %r = reshape(%m) {sizes=[1,2,1]} : f32[1,2,1]
  %back = reshape(%r) {sizes=[2,1,1,1]} : f32[2,1,1,1]
  %c = conv(%x, %back, %v) {stride=[1,1], padding=[0,0], dilation=[1,1], groups=1, transposed=false, output_padding=[0,0]} : f32[1,2,2,2]
  %whole = reshape(%w) {sizes=[2,1,1,1]} : f32[2,1,1,1]
  %d = conv(%x, %whole, %v) {stride=[1,1], padding=[0,0], dilation=[1,1], groups=1, transposed=false, output_padding=[0,0]} : f32[1,2,2,2]
  output %c
  output %d
})");
  testing::FakeEvaluator e;
  e.table = {{3, -5}, {2, 4}};
  PassContext context;
  context.evaluator = &e;
  ASSERT_TRUE(passes::fold_constants(g, context).ok());
  ASSERT_TRUE(check(g).ok()) << check(g).text();
  ASSERT_EQ(g.ops.size(), 3u) << print(g);
  const Value& weight = g.values[g.ops[g.values[g.outputs[0].value].producer].operands[1]];
  EXPECT_EQ(weight.kind, ValueKind::kConstant) << print(g);
  EXPECT_EQ(weight.type.sizes, (Dims{2, 1, 1, 1}));
  EXPECT_EQ(e.table[weight.index], (std::vector<double>{6, -20}));
}

TEST(FoldConstants, WithoutAnEvaluatorOrAfterItsErrorNothingChanges) {
  Graph g = parsed(kConvNorm), before = g;
  PassContext context;
  ASSERT_TRUE(passes::fold_constants(g, context).ok());
  EXPECT_TRUE(g == before);
  testing::FakeEvaluator empty;
  context.evaluator = &empty;
  ASSERT_TRUE(passes::fold_constants(g, context).ok());
  EXPECT_EQ(g.ops.size(), 2u);
  EXPECT_FALSE(context.notes.empty());
}

// What stands for several nodes of the file says so.
TEST(MergeSiblings, NamesAllTheNodes) {
  Graph g = parsed(R"(graph {
    %x = input 0 : f32[2,2]
    %a = constant 0 : f32[1,2]
    %b = constant 1 : f32[1,2]
    %p = linear(%x, %a, _) : f32[2,1]
    %q = linear(%x, %b, _) : f32[2,1]
    output %p
    output %q
  })");
  g.ops[0].origin = "linear @ layer.0.q", g.ops[1].origin = "linear_1 @ layer.0.k";
  testing::FakeEvaluator e;
  e.table = {{3, -5}, {1, 2}};
  PassContext context;
  context.evaluator = &e;
  context.extra_weight_bytes = 1 << 20;
  ASSERT_TRUE(passes::merge_siblings(g, context).ok());
  EXPECT_EQ(g.ops[0].origin, "linear, linear_1 @ layer.0.q") << print(g);
}

// A second copy of weights is made only as far as there is room for it, over all that are merged.
TEST(MergeSiblings, WeightsAreCopiedAsFarAsThereIsRoom) {
  const auto merged = [](int64_t room) {
    Graph g = parsed(R"(graph {
      %x = input 0 : f32[2,2]
      %a = constant 0 : f32[1,2]
      %b = constant 1 : f32[1,2]
      %y = input 1 : f32[2,2]
      %p = linear(%x, %a, _) : f32[2,1]
      %q = linear(%x, %b, _) : f32[2,1]
      %r = linear(%y, %a, _) : f32[2,1]
      %s = linear(%y, %b, _) : f32[2,1]
      output %p
      output %q
      output %r
      output %s
    })");
    testing::FakeEvaluator e;
    e.table = {{3, -5}, {1, 2}};
    PassContext context;
    context.evaluator = &e;
    context.extra_weight_bytes = room;
    EXPECT_TRUE(passes::merge_siblings(g, context).ok());
    EXPECT_TRUE(check(g).ok()) << check(g).text();
    const auto linears = std::count_if(g.ops.begin(), g.ops.end(), [](const Op& op) { return op.code == OpCode::k_linear; });
    const auto refused = std::count_if(context.notes.begin(), context.notes.end(), [](const std::string& note) {
      return note.find("a second copy of their weights needs 16 bytes") != std::string::npos;
    });
    EXPECT_EQ(linears, 2 + refused) << print(g);
    return 2 - refused;
  };
  EXPECT_EQ(merged(1), 0);
  EXPECT_EQ(merged(15), 0);
  EXPECT_EQ(merged(16), 1);
  EXPECT_EQ(merged(31), 1);
  EXPECT_EQ(merged(32), 2);
}

}  // namespace
}  // namespace keirin
