// SPDX-License-Identifier: Apache-2.0
//
// What operators and graphs have to move and multiply, against numbers worked out by hand.
#include "core/ops/work.h"

#include <gtest/gtest.h>

#include "core/ops/builder.h"

namespace keirin {
namespace {

Type typed(DType dtype, Dims sizes) {
  Dims strides = contiguous_strides(sizes);
  return Type{dtype, std::move(sizes), std::move(strides)};
}
Type f32(Dims sizes) { return typed(DType::k_f32, std::move(sizes)); }

struct Drawn {
  Graph graph;
  ValueId input(Type type) { return graph.add_input(std::move(type), static_cast<uint32_t>(graph.inputs.size())); }
  ValueId weight(Type type, ValueKind kind = ValueKind::kConstant) { return graph.add_constant(std::move(type), weights_++, kind); }
  ValueId op(OpCode code, ValueIds operands, Attrs attrs = {}) {
    const auto made = Builder(graph).emit(code, std::move(operands), std::move(attrs));
    EXPECT_TRUE(made.ok()) << made.status().text();
    return made.ok() ? made->front() : kNone;
  }
  void output(ValueId value, ValueId updates = kNone) { graph.outputs.push_back({value, updates}); }
  double flops() const { return contraction_of(graph, graph.ops.back()).flops; }

 private:
  uint32_t weights_ = 0;
};

TEST(Work, OfContractions) {
  {
    Drawn d;
    d.op(OpCode::k_matmul, {d.input(f32({3, 4, 5})), d.input(f32({3, 5, 7}))});
    EXPECT_EQ(d.flops(), 2 * 3 * 4 * 5 * 7);
  }
  {
    Drawn d;
    d.op(OpCode::k_linear, {d.input(f32({2, 3, 5})), d.weight(f32({7, 5}))});
    EXPECT_EQ(d.flops(), 2 * 2 * 3 * 5 * 7);
  }
  {
    Drawn d;
    d.op(OpCode::k_grouped_matmul, {d.input(f32({9, 5})), d.weight(f32({4, 5, 7})), d.input(typed(DType::k_i32, {4}))});
    EXPECT_EQ(d.flops(), 2 * 9 * 5 * 7) << "a row meets one of the weights";
  }
  const auto conv = [](bool transposed, Dims x, Dims w, int64_t groups) {
    Drawn d;
    d.op(OpCode::k_conv, {d.input(f32(std::move(x))), d.weight(f32(std::move(w)))},
         {{AttrKey::k_stride, Dims{2, 2}}, {AttrKey::k_padding, Dims{1, 1}}, {AttrKey::k_dilation, Dims{1, 1}}, {AttrKey::k_groups, groups},
          {AttrKey::k_transposed, transposed}, {AttrKey::k_output_padding, Dims{0, 0}}});
    return contraction_of(d.graph, d.graph.ops.back());
  };
  // 4x4 results of 8 channels, each over the 3 channels of its group in a 3x3 window.
  EXPECT_EQ(conv(false, {2, 6, 8, 8}, {8, 3, 3, 3}, 2).flops, 2.0 * 2 * 8 * 4 * 4 * 3 * 9);
  EXPECT_TRUE(conv(false, {2, 6, 8, 8}, {8, 3, 3, 3}, 2).convolution);
  // Each of 6 x 8 x 8 inputs goes into 4 channels of its group and 3x3 places.
  EXPECT_EQ(conv(true, {2, 6, 8, 8}, {6, 4, 3, 3}, 2).flops, 2.0 * 2 * 6 * 8 * 8 * 4 * 9);
  {
    Drawn d;  // as many as the convolution that it is a gradient of
    d.op(OpCode::k_conv_grad_weight, {d.input(f32({2, 6, 8, 8})), d.input(f32({2, 8, 4, 4}))},
         {{AttrKey::k_sizes, Dims{3, 3}}, {AttrKey::k_stride, Dims{2, 2}}, {AttrKey::k_padding, Dims{1, 1}},
          {AttrKey::k_dilation, Dims{1, 1}}, {AttrKey::k_groups, int64_t{2}}});
    EXPECT_EQ(d.flops(), 2.0 * 2 * 8 * 4 * 4 * 3 * 9);
  }
  const auto attention = [](int64_t rows, int64_t columns, bool causal) {
    Drawn d;
    d.op(OpCode::k_attention, {d.input(f32({2, 3, rows, 8})), d.input(f32({2, 3, columns, 8})), d.input(f32({2, 3, columns, 4}))},
         {{AttrKey::k_causal, causal}, {AttrKey::k_scale, 1.0}, {AttrKey::k_gqa, false}});
    return d.flops();
  };
  EXPECT_EQ(attention(5, 7, false), 2.0 * 2 * 3 * 5 * 7 * (8 + 4));
  EXPECT_EQ(attention(5, 5, true), 2.0 * 2 * 3 * 15 * (8 + 4));
  EXPECT_EQ(attention(5, 3, true), 2.0 * 2 * 3 * (1 + 2 + 3 + 3 + 3) * (8 + 4));
  {
    Drawn d;
    d.op(OpCode::k_add, {d.input(f32({4})), d.input(f32({4}))});
    EXPECT_EQ(d.flops(), 0);
  }
}

TEST(Work, BetweenInputsAndOutputsCountsNothing) {
  Drawn d;
  const ValueId x = d.input(f32({64, 32})), w = d.weight(f32({16, 32}));
  const ValueId y = d.op(OpCode::k_relu, {d.op(OpCode::k_linear, {x, w})});
  d.output(d.op(OpCode::k_mul, {y, y}));
  d.output(x);  // handed on
  const Work work = least_work(d.graph);
  EXPECT_EQ(work.bytes, 4.0 * (64 * 32 + 16 * 32 + 64 * 16));
  ASSERT_EQ(work.contractions.size(), 1u);
  EXPECT_EQ(work.contractions[0].flops, 2.0 * 64 * 32 * 16);
  EXPECT_EQ(work.contractions[0].dtype, DType::k_f32);
  // By itself the product reads and writes its own.
  EXPECT_EQ(least_work(d.graph, d.graph.ops[0]).bytes, 4.0 * (64 * 32 + 16 * 32 + 64 * 16));
}

TEST(Work, OfATableOnlyWhatIsPicked) {
  Drawn d;
  const ValueId table = d.weight(f32({100000, 8})), index = d.input(typed(DType::k_i64, {5}));
  const ValueId rows = d.op(OpCode::k_take, {table, index}, {{AttrKey::k_dim, int64_t{0}}});
  d.output(rows);
  EXPECT_EQ(least_work(d.graph).bytes, 5 * 8 + 2 * 4.0 * 5 * 8);
  d.output(d.op(OpCode::k_relu, {table}));  // now all of it
  EXPECT_EQ(least_work(d.graph).bytes, 5 * 8 + 4.0 * 5 * 8 + 2 * 4.0 * 100000 * 8);
}

TEST(Work, OfStateOnlyThePartThatIsWritten) {
  Drawn d;
  const ValueId cache = d.weight(f32({1000, 8}), ValueKind::kState), row = d.input(f32({1, 8}));
  const ValueId next =
      d.op(OpCode::k_slice_scatter, {cache, row},
           {{AttrKey::k_dim, int64_t{0}}, {AttrKey::k_start, int64_t{3}}, {AttrKey::k_end, int64_t{4}}, {AttrKey::k_step, int64_t{1}}});
  d.output(next, cache);
  // The cache is read by whoever wants its old rows: counted as a whole. Written is one row.
  EXPECT_EQ(least_work(d.graph).bytes, 4.0 * (1000 * 8 + 8 + 8));
}

}  // namespace
}  // namespace keirin
