// SPDX-License-Identifier: Apache-2.0
#include "core/ir/graph.h"

#include <gtest/gtest.h>

#include "core/ir/text.h"
#include "core/ir/verify.h"

namespace keirin {
namespace {

Type f32(Dims sizes) {
  Type type{DType::k_f32, sizes, {}};
  type.strides = contiguous_strides(sizes);
  return type;
}

TEST(Graph, Encodings) {
  Type image = f32({2, 3, 4, 5});
  EXPECT_EQ(image.encoding(), Encoding::kContiguous);
  image.strides = channels_last_strides(image.sizes);
  EXPECT_EQ(image.strides, (Dims{60, 1, 15, 3}));
  EXPECT_EQ(image.encoding(), Encoding::kChannelsLast);
  image.strides = {0, 0, 0, 0};
  EXPECT_EQ(image.encoding(), Encoding::kStrided);
  Type pixel = f32({2, 3, 1, 1});  // both at once counts as contiguous
  pixel.strides = channels_last_strides(pixel.sizes);
  EXPECT_EQ(pixel.encoding(), Encoding::kContiguous);
  EXPECT_EQ(f32({0, 3}).bytes(), 0);
  EXPECT_EQ(f32({}).bytes(), 4);
}

TEST(Graph, AttributesStaySorted) {
  Op op;
  op.set(AttrKey::k_eps, 1e-5);
  op.set(AttrKey::k_dim, int64_t{1});
  op.set(AttrKey::k_dim, int64_t{2});
  ASSERT_EQ(op.attrs.size(), 2u);
  EXPECT_EQ(op.attrs[0].key, AttrKey::k_dim);
  EXPECT_EQ(op.i(AttrKey::k_dim), 2);
  EXPECT_EQ(op.d(AttrKey::k_eps), 1e-5);
  EXPECT_TRUE(op.ints(AttrKey::k_sizes).empty());
  op.erase(AttrKey::k_dim);
  EXPECT_EQ(op.find(AttrKey::k_dim), nullptr);
}

TEST(Graph, DropDeadKeepsEffectsInputsAndTargetsOfUpdates) {
  Graph g;
  ValueId x = g.add_input(f32({2}), 0);
  g.add_input(f32({3}), 1);  // unused, still listed
  ValueId state = g.add_constant(f32({2}), 4, ValueKind::kState);
  g.add_constant(f32({9}), 5, ValueKind::kConstant);  // unused: goes
  g.add_op(OpCode::k_exp, {x}, {}, {f32({2})});       // dead
  OpId seed = g.add_op(OpCode::kOpaque, {}, {}, {});
  g.ops[seed].effects = true;
  g.ops[seed].call = 0;
  OpId neg = g.add_op(OpCode::k_neg, {x}, {}, {f32({2})});
  g.outputs.push_back({g.ops[neg].results[0], state, kNone});
  EXPECT_TRUE(g.drop_dead());
  ASSERT_TRUE(verify(g).ok()) << verify(g).text();
  EXPECT_EQ(g.ops.size(), 2u);
  EXPECT_EQ(g.values.size(), 4u);
  EXPECT_EQ(g.inputs.size(), 2u);
  EXPECT_EQ(g.values[g.outputs[0].updates].index, 4u);
  EXPECT_FALSE(g.drop_dead());
}

TEST(Graph, UsesCountReadsAndOutputs) {
  Graph g;
  ValueId x = g.add_input(f32({2}), 0);
  OpId mul = g.add_op(OpCode::k_mul, {x, x}, {}, {f32({2})});
  ValueId y = g.ops[mul].results[0];
  g.outputs = {{y, kNone, kNone}, {y, kNone, kNone}};
  EXPECT_EQ(g.count_uses(), (std::vector<uint32_t>{2, 2}));
  g.replace_uses(y, x);
  EXPECT_EQ(g.count_uses(), (std::vector<uint32_t>{4, 0}));
}

TEST(Graph, InputsAndConstantsKeepTheirNames) {
  Graph g;
  const ValueId x = g.add_input(f32({2}), 0, "tokens"), w = g.add_constant(f32({2}), 3, ValueKind::kConstant, "layer.weight");
  EXPECT_EQ(g.values[x].name, "tokens");
  EXPECT_EQ(g.values[w].name, "layer.weight");
}

}  // namespace
}  // namespace keirin
