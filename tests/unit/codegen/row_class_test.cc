// SPDX-License-Identifier: Apache-2.0
//
// Products of as many rows as their class has: which do, and that the plan's results are the same.
#include "plugins/codegen/plan/row_class.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/unit/codegen/check.h"

namespace keirin::codegen::test {
namespace {

constexpr uint8_t kF32 = kDType_f32;
using Rows = std::vector<int64_t>;

TEST(RowClass, AreFewAndNotMuchMore) {
  std::set<int64_t> classes;
  for (int64_t rows = 0; rows <= 1 << 16; ++rows) {
    const int64_t padded = row_class(rows);
    ASSERT_GE(padded, rows);
    ASSERT_LE(padded - rows, rows / 16) << rows;
    ASSERT_EQ(row_class(padded), padded) << rows;
    if (rows <= 32) ASSERT_EQ(padded, rows);
    classes.insert(padded);
  }
  EXPECT_LE(classes.size(), 33u + 11 * 16);
}

// A block with a residual between two layer norms, its products' operands and results being the plan's own; the first product reads an
// input.
RegionBuilder block(int64_t b, int64_t n, bool constant = true) {
  RegionBuilder g;
  const int x = g.input(kF32, {b, n, 48});
  const int w = g.input(kF32, {48, 48}, {}, constant), v = g.input(kF32, {48}, {}, constant);
  const int wide = g.input(kF32, {64, 48}, {}, constant), back = g.input(kF32, {48, 64}, {}, constant);
  const int long_v = g.input(kF32, {64}, {}, constant);
  const int first = g.layer_norm(g.linear(x, w, v), v, v, 1e-5);
  const int hidden = g.layer_norm(g.linear(first, wide, long_v), long_v, long_v, 1e-5);
  g.output(g.layer_norm(g.binary(kOp_add, g.linear(hidden, back, v), first), v, v, 1e-5));
  return g;
}

// A check compiles its region twice.
Rows once(Rows rows) {
  rows.resize(rows.size() / 2);
  return rows;
}

TEST(RowClass, ResultsAreTheSame) {
  for (const auto& [b, n] : {std::pair<int64_t, int64_t>{3, 11}, {1, 67}, {5, 26}, {2, 101}}) {
    InterpBackend exact, padded;
    padded.row_classes = true;
    const Checked one = check(block(b, n), exact), other = check(block(b, n), padded);
    EXPECT_EQ(once(exact.rows), (Rows{b * n, b * n, b * n}));
    EXPECT_EQ(once(padded.rows), (Rows{b * n, row_class(b * n), row_class(b * n)})) << "but for the one that reads an input";
    EXPECT_GT(other.executable->workspace_bytes(), one.executable->workspace_bytes());
    EXPECT_EQ(other.outputs, one.outputs);
  }
}

TEST(RowClass, OnlyWhatIsThePlansOwnHasRoom) {
  const auto rows_of = [](const RegionBuilder& g) {
    InterpBackend backend;
    backend.row_classes = true;
    check(g, backend);
    return once(backend.rows);
  };
  EXPECT_EQ(rows_of(block(2, 16)), (Rows{32, 32, 32})) << "few rows are a class each";
  EXPECT_EQ(rows_of(block(1, 34, false)), (Rows{34, 34, 34})) << "weights that a caller gives";
  {
    RegionBuilder g;
    const int x = g.input(kF32, {67, 8}), w = g.input(kF32, {8, 8}, {}, true), v = g.input(kF32, {8}, {}, true);
    g.output(g.linear(g.layer_norm(x, v, v, 1e-5), w, v));
    EXPECT_EQ(rows_of(g), Rows{67}) << "a result that the caller gets";
  }
}

}  // namespace
}  // namespace keirin::codegen::test
