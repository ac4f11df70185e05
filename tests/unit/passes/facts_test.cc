// SPDX-License-Identifier: Apache-2.0
//
// What splat_of tells of a constant is that constant, for integers around every power of two: within 2^53, where a double holds all of
// them, and nothing beyond.
#include "core/passes/facts.h"

#include <gtest/gtest.h>

#include "core/ops/builder.h"

namespace keirin {
namespace {

TEST(Facts, ASplatIsTheNumberOrUnknown) {
  int told = 0, untold = 0;
  for (int power = 0; power < 63; ++power)
    for (int64_t sign : {1, -1})
      for (int64_t off = -2; off <= 2; ++off) {
        const int64_t value = sign * ((int64_t{1} << power) + off);
        Graph g;
        Builder b(g);
        const Result<ValueId> full = b.full_i(value, DType::k_i64, {2, 1});
        ASSERT_TRUE(full.ok());
        const Result<ValueId> wide = b.expand_to(*full, {2, 3});
        ASSERT_TRUE(wide.ok());
        const bool held = value <= (int64_t{1} << 53) && value >= -(int64_t{1} << 53);
        for (ValueId v : {*full, *wide}) {
          const std::optional<double> splat = splat_of(g, v);
          ASSERT_EQ(splat.has_value(), held) << value;
          if (!held) continue;
          ASSERT_EQ(static_cast<int64_t>(*splat), value);
        }
        (held ? told : untold) += 1;
      }
  EXPECT_GT(told, 500);
  EXPECT_GT(untold, 90);
}

}  // namespace
}  // namespace keirin
