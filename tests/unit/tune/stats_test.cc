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

// The published table of the signed-rank sum: P(W+ >= 47) = 0.0244 and P(W+ >= 45) = 0.0420 for n = 10.
TEST(Stats, SignedRankPAgreesWithTheTable) {
  std::vector<double> d{-1, -2, 3, 4, -5, 6, 7, 8, 9, 10};  // the negative ranks are 1, 2 and 5: W+ = 55 - 8
  EXPECT_NEAR(signed_rank_p(d, 0), 0.0244, 5e-5);
  d[1] = 2, d[2] = -3, d[3] = -4, d[4] = 5, d[0] = -1;  // 1, 3 and 4, and 2 above: W+ = 55 - 8
  EXPECT_NEAR(signed_rank_p(d, 0), 0.0244, 5e-5);
  d = {-1, -2, -3, -4, 5, 6, 7, 8, 9, 10};  // W+ = 45
  EXPECT_NEAR(signed_rank_p(d, 0), 0.0420, 5e-5);
  for (double& x : d) x += 3;
  EXPECT_NEAR(signed_rank_p(d, 3), 0.0420, 5e-5) << "a bound moves with the numbers";
  EXPECT_DOUBLE_EQ(signed_rank_p(std::vector<double>(12, 1.0), 0), 1.0 / 4096) << "the least that 12 blocks can say";
  EXPECT_EQ(signed_rank_p({}, 0), 1);
  EXPECT_EQ(signed_rank_p(std::vector<double>{2, 2}, 2), 1);
  EXPECT_EQ(signed_rank_p(std::vector<double>{-1, 1}, 0), 0.75) << "ties speak for the bound";
}

TEST(Stats, GateIsThreeTimesTheNoiseOfTheShift) {
  const std::vector<double> seven(7, 0.01), eight(8, 0.004), quiet(8, 0.001);
  EXPECT_FALSE(gate_of(seven, seven)) << "seven sittings say nothing";
  EXPECT_DOUBLE_EQ(*gate_of(seven, eight), 0.012) << "the device's, until the series has its own eight";
  EXPECT_DOUBLE_EQ(*gate_of(eight, seven), 0.012);
  EXPECT_DOUBLE_EQ(*gate_of(quiet, eight), 0.01) << "never below 1 %";
  std::vector<double> older(4, 0.5);
  older.insert(older.end(), eight.begin(), eight.end());
  EXPECT_DOUBLE_EQ(*gate_of(older, seven), 0.012) << "the last eight";
}

TEST(Stats, LabelsByTheInterval) {
  const auto label = [](double low, double high) { return label_of({0, low, high, 12}, 0.02); };
  const double gate = std::log1p(0.02);
  EXPECT_EQ(label(gate + 1e-9, 0.05), Label::kRegressed);
  EXPECT_EQ(label(-0.05, -gate - 1e-9), Label::kImproved);
  EXPECT_EQ(label(-gate + 1e-9, gate - 1e-9), Label::kUnchanged);
  EXPECT_EQ(label(-gate + 1e-9, gate + 1e-9), Label::kInconclusive);
  EXPECT_EQ(label(gate, 0.05), Label::kInconclusive) << "at the gate is not beyond it";
  EXPECT_EQ(label_of({}, 0.02), Label::kInconclusive) << "no blocks show nothing";
  EXPECT_EQ(size_of_shift(0.029), "small");
  EXPECT_EQ(size_of_shift(-0.05), "medium");
  EXPECT_EQ(size_of_shift(0.1), "large");
}

TEST(Stats, BlocksGrowAtTheLooksOnly) {
  std::vector<double> torn;
  for (int i = 0; i < 47; ++i) {
    torn.push_back(0.2 * std::sin(i * i));
    ASSERT_TRUE(needs_more_blocks(torn, 0.01)) << i;
  }
  torn.push_back(0.1);
  EXPECT_FALSE(needs_more_blocks(torn, 0.01)) << "48 are all";
  EXPECT_FALSE(needs_more_blocks(std::vector<double>(12, 0.0), 0.01));
}

// Their own example (Benjamini and Hochberg 1995): of 15 p-values at 5 % the first four are discoveries.
TEST(Stats, DiscoveriesOfTheOriginalPaper) {
  const std::vector<double> p{0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344,
                              0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.000};
  const std::vector<bool> found = discoveries(p, 0.05);
  for (size_t i = 0; i < p.size(); ++i) EXPECT_EQ(found[i], i < 4) << i;
  EXPECT_TRUE(discoveries({}, 0.05).empty());
}

TEST(Stats, ALabelNeedsItsDiscovery) {
  // p is 6e-4: the interval lies beyond the gate, yet among two hundred tests it may be chance.
  std::vector<double> lean;
  for (int i = 0; i < 24; ++i) lean.push_back(i < 8 ? -0.0295 - 0.001 * i : 0.028 + 0.001 * i);
  ASSERT_EQ(label_of(paired_shift(lean), 0.001), Label::kRegressed);
  const std::vector<std::vector<double>> alone{lean};
  EXPECT_EQ(confirmed_labels(alone, std::vector<double>{0.001})[0], Label::kRegressed);
  std::vector<std::vector<double>> crowd(100, std::vector<double>(24));
  for (size_t c = 0; c < crowd.size(); ++c)
    for (size_t i = 0; i < 24; ++i) crowd[c][i] = (i % 2 ? 1 : -1) * 0.001 * static_cast<double>(i + 1);
  crowd[0] = lean;
  EXPECT_EQ(confirmed_labels(crowd, std::vector<double>(100, 0.001))[0], Label::kInconclusive);
}

TEST(Stats, ChangePointsOfStairs) {
  std::vector<double> stairs;
  for (int i = 0; i < 45; ++i) stairs.push_back((i >= 15 ? 1 : 0) + (i >= 30 ? -3 : 0) + 0.01 * (i % 3));
  const std::vector<ChangePoint> points = change_points(stairs, 0.5);
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[0].at, 15u);
  EXPECT_NEAR(points[0].step, 1, 1e-9);
  EXPECT_EQ(points[1].at, 30u);
  EXPECT_NEAR(points[1].step, -3, 1e-9);
  EXPECT_EQ(change_points(stairs, 2).size(), 1u) << "a step below the gate is none";
  EXPECT_TRUE(change_points(std::vector<double>{0, 0, 0, 0, 9, 9, 9, 9, 9}, 1).empty()) << "segments have five points";
}

}  // namespace
}  // namespace keirin
