// SPDX-License-Identifier: Apache-2.0
//
// The statistics against figures that were worked out another way: tables, brute force over all sign patterns, by hand.
#include "core/tune/stats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace keirin {
namespace {

TEST(Stats, Median) {
  EXPECT_EQ(median(std::vector<double>{}), 0);
  EXPECT_EQ(median(std::vector<double>{3, 1, 2}), 2);
  EXPECT_EQ(median(std::vector<double>{4, 1, 2, 3}), 2.5);
}

TEST(Stats, HodgesLehmannByHand) {
  // Walsh averages of 1, 2, 6: 1 1.5 3.5 2 4 6; sorted 1 1.5 2 3.5 4 6.
  const std::vector<double> d{1, 2, 6};
  const Shift s = signed_rank_shift(d, 1);
  EXPECT_DOUBLE_EQ(s.estimate, 2.75);
  EXPECT_DOUBLE_EQ(s.low, 1.5);
  EXPECT_DOUBLE_EQ(s.high, 4);
  EXPECT_EQ(s.blocks, 3);
}

// The looks' figures are the exact ones for 0.4 %.
TEST(Stats, LooksAreExact) {
  for (const Look& look : kRaceLooks) EXPECT_EQ(exact_drop(look.blocks, 0.004), look.drop) << look.blocks << " blocks";
}

// The published table of the two-sided signed-rank test at 5 %: critical values 8 (n = 10), 52 (n = 20), 0 (n = 6).
TEST(Stats, ExactDropAgreesWithTheTable) {
  EXPECT_EQ(exact_drop(10, 0.05), 8);
  EXPECT_EQ(exact_drop(20, 0.05), 52);
  EXPECT_EQ(exact_drop(6, 0.05), 0);
  EXPECT_EQ(exact_drop(5, 0.05), -1) << "five blocks cannot show anything at 5 %";
}

// All 2^10 sign patterns of ten distances, each equally likely if the shift is 0: the share that the interval misses.
TEST(Stats, CoverageByBruteForce) {
  const double distances[10] = {0.3, 1.1, 2.7, 0.9, 1.7, 3.1, 0.2, 2.2, 1.3, 0.6};
  for (const int drop : {0, 1, 3, 8}) {
    int missed = 0;
    for (int signs = 0; signs < 1024; ++signs) {
      std::vector<double> d;
      for (int i = 0; i < 10; ++i) d.push_back(signs >> i & 1 ? distances[i] : -distances[i]);
      const Shift s = signed_rank_shift(d, drop);
      if (s.low > 0 || s.high < 0) ++missed;
    }
    const double share = missed / 1024.0;
    EXPECT_GE(exact_drop(10, share + 1e-12), drop);
    EXPECT_LT(exact_drop(10, share - 1e-12), drop);
  }
}

TEST(Stats, SequentialTestSpeaksAtLooksOnly) {
  SequentialTest above(0.02);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(above.add(0.1 + i * 0.001), Finding::kMore);
  EXPECT_EQ(above.add(0.1), Finding::kAbove);
  SequentialTest below(0.02);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(below.add(0.001 * i), Finding::kMore);
  EXPECT_EQ(below.add(0), Finding::kBelow);
  SequentialTest torn(0.02);
  const auto swing = [](int i) { return 0.02 + (i % 2 ? 1 : -1) * (0.01 + 0.001 * i); };
  for (int i = 0; i < 79; ++i) ASSERT_EQ(torn.add(swing(i)), Finding::kMore) << i;
  EXPECT_EQ(torn.add(swing(79)), Finding::kUndecided);
  EXPECT_LT(torn.shift().low, 0.02);
  EXPECT_GT(torn.shift().high, 0.02);
}

TEST(Stats, NoBlocksIsNoFigure) {
  EXPECT_EQ(signed_rank_shift({}, 1).blocks, 0);
  EXPECT_EQ(SequentialTest(0).shift().estimate, 0);
}

}  // namespace
}  // namespace keirin
