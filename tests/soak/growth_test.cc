// SPDX-License-Identifier: Apache-2.0
//
// What the soak takes for growth: a leak beside phases, plans and noise is, and these alone are not; and where noise would hide a leak,
// that nothing is told.
#include "tests/soak/growth.h"

#include <gtest/gtest.h>

#include <random>

namespace keirin::test {
namespace {

constexpr double kMb = 1 << 20;
using Verdict = Growth::Verdict;

// Of a run of `count` swaps: phases that differ by hundreds of MB, plans that take 20 MB each and come and go, noise of 15 MB.
std::vector<Reading> readings(size_t count, double leak, uint32_t seed, bool plans_grow = false, double spread = 15 * kMb) {
  std::mt19937 random(seed);
  std::normal_distribution<double> noise(0, spread);
  std::vector<Reading> out;
  for (size_t i = 0; i < count; ++i) {
    const size_t phase = i % 4;
    const double plans = plans_grow ? static_cast<double>(i * 10 / count + random() % 4) : static_cast<double>(random() % 10);
    out.push_back({phase, plans, 700 * kMb + static_cast<double>(phase * 150) * kMb + plans * 20 * kMb + noise(random) +
                                     leak * static_cast<double>(i)});
  }
  return out;
}

TEST(Growth, ALeakIsSeenBesidePhasesPlansAndNoise) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    const Growth growth = growth_of(readings(28, 6 * kMb, seed));
    EXPECT_EQ(growth.verdict(50 * kMb), Verdict::kGrows) << seed;
    EXPECT_NEAR(growth.a_reading / kMb, 6, 2.5) << seed;
  }
}

TEST(Growth, PhasesPlansAndNoiseAloneAreNone) {
  int alarms = 0;
  for (uint32_t seed = 0; seed < 1000; ++seed) alarms += growth_of(readings(28, 0, seed)).verdict(0) == Verdict::kGrows;
  EXPECT_LE(alarms, 5) << "one in a thousand is chance";
}

TEST(Growth, MorePlansAreNoLeak) {
  int alarms = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) alarms += growth_of(readings(28, 0, seed, true)).verdict(0) == Verdict::kGrows;
  EXPECT_LE(alarms, 2);
  EXPECT_EQ(growth_of(readings(28, 15 * kMb, 1, true)).verdict(50 * kMb), Verdict::kGrows) << "and a leak beside them is one";
}

TEST(Growth, FewReadingsTellNothing) {
  EXPECT_EQ(growth_of({}).verdict(1e12), Verdict::kTellsNothing);
  EXPECT_EQ(growth_of(readings(7, 100 * kMb, 1)).verdict(1e12), Verdict::kTellsNothing);
  for (int seed = 0; seed < 50; ++seed) EXPECT_TRUE(growth_of(readings(13, 30 * kMb, static_cast<uint32_t>(seed))).known);
}

TEST(Growth, WhatIsAllowedIsAllowed) {
  EXPECT_EQ(growth_of(readings(28, 6 * kMb, 1)).verdict(300 * kMb), Verdict::kHolds);
  EXPECT_EQ(growth_of(readings(28, -20 * kMb, 1)).verdict(100 * kMb), Verdict::kHolds) << "less memory is not growth";
}

// What is said to hold does: twice what is allowed is found, if it is not said that nothing can be told, however large the noise is.
TEST(Growth, WhatHoldsWouldHaveBeenSeenToGrow) {
  constexpr double kAllowed = 60 * kMb;
  for (const double noise : {3 * kMb, 15 * kMb, 60 * kMb, 240 * kMb}) {
    int passed = 0, told = 0, alarms = 0;
    for (uint32_t seed = 0; seed < 500; ++seed) {
      const Verdict leaks = growth_of(readings(28, 2 * kAllowed / 27, seed, false, noise)).verdict(kAllowed),
                    flat = growth_of(readings(28, 0, seed, false, noise)).verdict(kAllowed);
      passed += leaks == Verdict::kHolds, told += flat != Verdict::kTellsNothing, alarms += flat == Verdict::kGrows;
    }
    EXPECT_LE(passed, 3) << noise / kMb << " MB of noise hide " << 2 * kAllowed / kMb << " MB";
    EXPECT_LE(alarms, 3) << noise / kMb;
    if (noise <= 15 * kMb) {
      EXPECT_GE(told, 490) << noise / kMb;
    } else {
      EXPECT_LE(told, 10) << "with " << noise / kMb << " MB of noise nobody knows";
    }
  }
}

// And where noise hides it, more of the same time shows it.
TEST(Growth, MoreReadingsTellMore) {
  const double noise = 60 * kMb, allowed = 60 * kMb;
  int few = 0, many = 0;
  for (uint32_t seed = 0; seed < 50; ++seed) {
    few += growth_of(readings(28, 4 * kMb, seed, false, noise)).verdict(allowed) == Verdict::kGrows;
    many += growth_of(readings(110, 4 * kMb, seed, false, noise)).verdict(allowed) == Verdict::kGrows;
  }
  EXPECT_LE(few, 40);
  EXPECT_EQ(many, 50);
}

}  // namespace
}  // namespace keirin::test
