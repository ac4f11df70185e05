// SPDX-License-Identifier: Apache-2.0
//
// Which masks go and which become the flag `causal`, over all small numbers of queries and keys and all diagonals: a mask may be
// replaced only by what shows exactly the same scores. The definition (query i sees keys up to i) is written out here.
#include <gtest/gtest.h>

#include <cmath>

#include "core/ops/builder.h"
#include "core/passes/pass.h"
#include "tests/unit/passes/fake_evaluator.h"

namespace keirin {
namespace {

Type typed(DType dtype, Dims sizes) { return {dtype, sizes, contiguous_strides(sizes)}; }

struct Attended {
  Graph graph;
  testing::FakeEvaluator evaluator;
  ValueId q, k, v;
  Attended(int64_t queries, int64_t keys) {
    q = graph.add_input(typed(DType::k_f32, {1, 2, queries, 4}), 0);
    k = graph.add_input(typed(DType::k_f32, {1, 2, keys, 4}), 1);
    v = graph.add_input(typed(DType::k_f32, {1, 2, keys, 4}), 2);
    graph.inputs = {q, k, v};
  }
  // What is left of the mask after the pass: its presence and the flag.
  std::pair<bool, bool> after(ValueId mask) {
    const auto y = Builder(graph).emit1(OpCode::k_attention, {q, k, v, mask}, {{AttrKey::k_causal, false}, {AttrKey::k_scale, 0.5}});
    EXPECT_TRUE(y.ok()) << y.status().text();
    graph.outputs.push_back({*y, kNone, kNone});
    PassContext context;
    context.evaluator = &evaluator;
    EXPECT_TRUE(passes::drop_constant_masks(graph, context).ok());
    const Op& op = graph.ops.back();
    return {op.operands.size() > 3 && op.operands[3] != kNone, op.b(AttrKey::k_causal)};
  }
};

void expect_same(bool masked, bool causal, const std::vector<bool>& shown, int64_t keys, const std::string& where, int* replaced) {
  if (masked) {
    EXPECT_FALSE(causal) << where;
    return;
  }
  ++*replaced;
  for (size_t n = 0; n < shown.size(); ++n) {
    const auto i = static_cast<int64_t>(n) / keys, j = static_cast<int64_t>(n) % keys;
    ASSERT_EQ(shown[n], !causal || j <= i) << where << ": query " << i << ", key " << j;
  }
}

TEST(DropConstantMasks, OfConstantsOnlyWhatShowsTheSameScores) {
  int replaced = 0;
  for (int64_t queries = 1; queries < 6; ++queries)
    for (int64_t keys = 1; keys < 6; ++keys)
      for (int64_t diagonal = -6; diagonal <= 6; ++diagonal)
        for (int kind = 0; kind < 3; ++kind)  // bool, -inf, the least finite number
          for (int64_t spoilt = -1; spoilt < queries * keys; spoilt += 3) {
            Attended a(queries, keys);
            std::vector<double> values;
            std::vector<bool> shown;
            for (int64_t i = 0; i < queries; ++i)
              for (int64_t j = 0; j < keys; ++j) {
                shown.push_back((j <= i + diagonal) != (i * keys + j == spoilt));
                values.push_back(kind == 0 ? shown.back() : shown.back() ? 0 : kind == 1 ? -INFINITY : -3.4028234663852886e38);
              }
            a.evaluator.table.push_back(values);
            const ValueId mask =
                a.graph.add_constant(typed(kind == 0 ? DType::k_bool : DType::k_f32, {queries, keys}), 0, ValueKind::kConstant);
            const auto wide = Builder(a.graph).expand_to(mask, {1, 2, queries, keys});
            ASSERT_TRUE(wide.ok());
            const auto [masked, causal] = a.after(*wide);
            expect_same(masked, causal, shown, keys,
                        std::to_string(queries) + "x" + std::to_string(keys) + " diagonal " + std::to_string(diagonal) + " kind " +
                            std::to_string(kind),
                        &replaced);
            if (HasFailure()) return;
          }
  EXPECT_GT(replaced, 300) << "else the pass does nothing";
}

// One row more than is read, and one that is read: both hide nothing.
TEST(DropConstantMasks, AMaskThatIsTooLargeToReadStays) {
  for (const int64_t queries : {2048, 2049}) {
    Attended a(queries, 2048);
    a.evaluator.table.push_back(std::vector<double>(static_cast<size_t>(queries * 2048), 0.0));
    const ValueId mask = a.graph.add_constant(typed(DType::k_f32, {queries, 2048}), 0, ValueKind::kConstant);
    const auto wide = Builder(a.graph).expand_to(mask, {1, 2, queries, 2048});
    ASSERT_TRUE(wide.ok());
    EXPECT_EQ(a.after(*wide).first, queries > 2048);
  }
}

// The same masks as a model writes them: compared numbers of rows and columns.
TEST(DropConstantMasks, OfComparedIotasOnlyWhatShowsTheSameScores) {
  int replaced = 0;
  for (int64_t queries = 1; queries < 6; ++queries)
    for (int64_t keys = 1; keys < 6; ++keys)
      for (int64_t first_row = -3; first_row <= 3; ++first_row)
        for (int64_t first_column = -2; first_column <= 2; ++first_column)
          for (int form = 0; form < 6; ++form) {
            Attended a(queries, keys);
            Builder b(a.graph);
            const auto iota = [&](int64_t n, int64_t start, Dims sizes) {
              const ValueId i = *b.emit1(OpCode::k_iota, {},
                                         {{AttrKey::k_sizes, Dims{n}},
                                          {AttrKey::k_dtype, static_cast<int64_t>(DType::k_i64)},
                                          {AttrKey::k_start, start},
                                          {AttrKey::k_step, int64_t{1}}});
              return *b.expand_to(*b.reshape(i, std::move(sizes)), {queries, keys});
            };
            const ValueId row = iota(queries, first_row, {queries, 1}), column = iota(keys, first_column, {1, keys});
            const OpCode codes[] = {OpCode::k_le, OpCode::k_lt, OpCode::k_ge, OpCode::k_gt};
            const OpCode code = codes[form % 4];
            const bool turned = form >= 4;
            ValueId condition = *b.emit1(code, turned ? ValueIds{row, column} : ValueIds{column, row});
            std::vector<bool> shown;
            for (int64_t i = 0; i < queries; ++i)
              for (int64_t j = 0; j < keys; ++j) {
                const int64_t l = turned ? i + first_row : j + first_column, r = turned ? j + first_column : i + first_row;
                shown.push_back(code == OpCode::k_le ? l <= r : code == OpCode::k_lt ? l < r : code == OpCode::k_ge ? l >= r : l > r);
              }
            const bool additive = (first_row + first_column) % 2 != 0;
            if (additive)
              condition = *b.emit1(OpCode::k_select, {condition, *b.full(0, DType::k_f32, {queries, keys}),
                                                      *b.full(-INFINITY, DType::k_f32, {queries, keys})});
            const auto [masked, causal] = a.after(*b.expand_to(condition, {1, 2, queries, keys}));
            expect_same(masked, causal, shown, keys,
                        std::to_string(queries) + "x" + std::to_string(keys) + " rows from " + std::to_string(first_row) +
                            ", columns from " + std::to_string(first_column) + ", form " + std::to_string(form),
                        &replaced);
            if (HasFailure()) return;
          }
  EXPECT_GT(replaced, 20) << "else the pass does nothing";
}

}  // namespace
}  // namespace keirin
