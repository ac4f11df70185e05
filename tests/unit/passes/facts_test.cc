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

// Every pair of dtypes against the definition: each value of the one is a value of the other. An integer fits where both ends of its range
// do, and into a float where the float's mantissa holds all of its bits.
TEST(Facts, ACastLosesNothingWhereEveryValueFits) {
  struct Integer {
    DType dtype;
    double low, high;
  };
  const Integer integers[] = {{DType::k_u8, 0, 255}, {DType::k_i8, -128, 127}, {DType::k_i16, -32768, 32767},
                              {DType::k_i32, -2147483648.0, 2147483647.0}, {DType::k_i64, -9223372036854775808.0, 9223372036854775808.0}};
  const std::pair<DType, double> floats[] = {
      {DType::k_bf16, 256.0}, {DType::k_f16, 2048.0}, {DType::k_f32, 16777216.0}, {DType::k_f64, 9007199254740992.0}};
  for (const Integer& from : integers) {
    for (const Integer& to : integers)
      EXPECT_EQ(is_lossless(from.dtype, to.dtype), to.low <= from.low && from.high <= to.high)
          << dtype_name(from.dtype) << " to " << dtype_name(to.dtype);
    for (const auto& [to, whole] : floats) {  // up to `whole` the float has every integer
      EXPECT_EQ(is_lossless(from.dtype, to), -from.low <= whole && from.high <= whole)
          << dtype_name(from.dtype) << " to " << dtype_name(to);
      EXPECT_FALSE(is_lossless(to, from.dtype)) << dtype_name(to) << " to " << dtype_name(from.dtype);
    }
    EXPECT_TRUE(is_lossless(DType::k_bool, from.dtype));
    EXPECT_FALSE(is_lossless(from.dtype, DType::k_bool));
  }
  for (const auto& [from, ignored] : floats)
    for (const auto& [to, also_ignored] : floats)
      EXPECT_EQ(is_lossless(from, to), from == to || to == DType::k_f64 || (to == DType::k_f32 && from != DType::k_f64))
          << dtype_name(from) << " to " << dtype_name(to);
}

}  // namespace
}  // namespace keirin
