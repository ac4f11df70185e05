// SPDX-License-Identifier: Apache-2.0
//
// The weight of a convolution whose input is channels-last: a constant is laid out once, when the model is loaded; a weight that a caller
// may change stays as it is, or is laid out for each call where the context says so, and one that nobody can lay out stays, too. And what a
// weight's gradient is made of.
#include <gtest/gtest.h>

#include "core/ir/text.h"
#include "core/ops/strides.h"
#include "core/passes/pass.h"
#include "tests/unit/passes/fake_evaluator.h"

namespace keirin {
namespace {

class LayingOut : public testing::FakeEvaluator {
 public:
  int asked = 0;
  bool able = true;

  Result<std::vector<FoldedConstant>> evaluate(const Graph& graph) override {
    ++asked;
    EXPECT_EQ(graph.ops.size(), 1u);
    EXPECT_EQ(graph.ops[0].code, OpCode::k_relayout);
    if (!able) return Status(Code::k_unsupported, "not today");
    return std::vector<FoldedConstant>{{7, graph.type(graph.outputs[0].value)}};
  }
};

// Two convolutions with the weight that `declared` is.
Graph convolutions(const std::string& declared) {
  const std::string conv =
      "conv(%x, %w, _) {stride=[1,1], padding=[0,0], dilation=[1,1], groups=1, transposed=false, output_padding=[0,0]} : f32[1,8,3,3]\n";
  Result<Graph> g = parse("graph {\n  %x = input 0 : f32[1,3,4,4]\n  %w = " + declared + " : f32[8,3,2,2]\n  %c = " + conv +
                          "  %d = " + conv + "  %e = add(%c, %d) : f32[1,8,3,3]\n  output %e\n}");
  EXPECT_TRUE(g.ok()) << g.status().text();
  return *g;
}

TEST(AssignLayout, AConstantWeightIsLaidOutOnceAndOnlyThat) {
  for (const std::string declared : {"constant 0", "input 1"})
    for (const bool able : {true, false}) {
      Graph graph = convolutions(declared);
      LayingOut evaluator;
      evaluator.able = able;
      PassContext context;
      context.channels_last = true;
      context.evaluator = &evaluator;
      ASSERT_TRUE(passes::assign_layout(graph, context).ok());
      const bool constant = declared == "constant 0";
      EXPECT_EQ(evaluator.asked, constant ? 1 : 0) << declared;
      int seen = 0;
      for (const Op& op : graph.ops) {
        if (op.code != OpCode::k_conv) continue;
        ++seen;
        const Value& weight = graph.values[op.operands[1]];
        EXPECT_EQ(weight.type.strides, constant && able ? channels_last_strides({8, 3, 2, 2}) : contiguous_strides({8, 3, 2, 2}))
            << print(graph);
        EXPECT_TRUE(!constant || weight.index == (able ? 7u : 0u)) << weight.index;
      }
      EXPECT_EQ(seen, 2);
      EXPECT_EQ(context.notes.size(), constant && !able ? 1u : 0u);
    }
}

TEST(AssignLayout, AWeightThatIsNoConstantIsCopiedWhereTheContextSaysSo) {
  Graph graph = convolutions("input 1");
  PassContext context;
  context.channels_last = context.relays_weights = true;
  ASSERT_TRUE(passes::assign_layout(graph, context).ok());
  ValueId weight = kNone;
  for (const Op& op : graph.ops) {
    if (op.code != OpCode::k_conv) continue;
    EXPECT_EQ(graph.type(op.operands[1]).strides, channels_last_strides({8, 3, 2, 2})) << print(graph);
    EXPECT_TRUE(weight == kNone || weight == op.operands[1]) << "copied twice\n" << print(graph);
    weight = op.operands[1];
  }
}

TEST(AssignLayout, AWeightThatIsReturnedChannelsLastIsCopiedOnce) {
  Result<Graph> g = parse(
      "graph {\n  %x = input 0 : f32[1,3,4,4]\n  %m = input 1 : f32[8,3,2,2]\n  %w = cast(%m) {dtype=bf16} : bf16[8,3,2,2]\n"
      "  %a = cast(%x) {dtype=bf16} : bf16[1,3,4,4]\n"
      "  %y = conv(%a, %w, _) {stride=[1,1], padding=[0,0], dilation=[1,1], groups=1, transposed=false, output_padding=[0,0]}"
      " : bf16[1,8,3,3]\n"
      "  %k = relayout(%w) {encoding=\"channels_last\"} : bf16[8,3,2,2]{12,1,6,3}\n  output %y\n  output %k\n}");
  ASSERT_TRUE(g.ok()) << g.status().text();
  PassContext context;
  context.channels_last = context.relays_weights = true;
  ASSERT_TRUE(passes::assign_layout(*g, context).ok());
  for (const Op& op : g->ops)
    if (op.code == OpCode::k_conv) EXPECT_EQ(op.operands[1], g->outputs[1].value) << print(*g);
  EXPECT_EQ(g->type(g->outputs[1].value).strides, channels_last_strides({8, 3, 2, 2})) << print(*g);
}

TEST(AssignLayout, AWeightsGradientIsMadeOfTensorsInOneOrder) {
  Result<Graph> g = parse(
      "graph {\n  %x = input 0 : f32[1,3,4,4]\n  %y = input 1 : f32[1,8,3,3]\n"
      "  %g = conv_grad_weight(%x, %y) {sizes=[2,2], stride=[1,1], padding=[0,0], dilation=[1,1], groups=1} : f32[8,3,2,2]\n"
      "  output %g\n}");
  ASSERT_TRUE(g.ok()) << g.status().text();
  PassContext context;
  context.channels_last = true;
  ASSERT_TRUE(passes::assign_layout(*g, context).ok());
  const Op* gradient = nullptr;
  for (const Op& op : g->ops)
    if (op.code == OpCode::k_conv_grad_weight) gradient = &op;
  ASSERT_NE(gradient, nullptr);
  EXPECT_EQ(g->type(gradient->operands[0]).strides, channels_last_strides({1, 3, 4, 4})) << print(*g);
  EXPECT_EQ(g->type(gradient->operands[1]).strides, channels_last_strides({1, 8, 3, 3})) << print(*g);
  EXPECT_EQ(g->type(g->outputs[0].value).strides, contiguous_strides({8, 3, 2, 2})) << print(*g);
}

}  // namespace
}  // namespace keirin
