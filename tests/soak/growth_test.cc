// SPDX-License-Identifier: Apache-2.0
//
// What the soak takes for growth: a leak beside phases, plans and noise is, and these alone are not.
#include "tests/soak/growth.h"

#include <gtest/gtest.h>

#include <random>

namespace keirin::test {
namespace {

constexpr double kMb = 1 << 20;

// Of a run of `count` swaps: phases that differ by hundreds of MB, plans that take 20 MB each and come and go, noise of 15 MB.
std::vector<Reading> readings(size_t count, double leak, uint32_t seed, bool plans_grow = false) {
  std::mt19937 random(seed);
  std::normal_distribution<double> noise(0, 15 * kMb);
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
    EXPECT_TRUE(growth.grows(50 * kMb)) << seed;
    EXPECT_NEAR(growth.a_reading / kMb, 6, 2.5) << seed;
  }
}

TEST(Growth, PhasesPlansAndNoiseAloneAreNone) {
  int alarms = 0;
  for (uint32_t seed = 0; seed < 1000; ++seed) alarms += growth_of(readings(28, 0, seed)).grows(0);
  EXPECT_LE(alarms, 5) << "one in a thousand is chance";
}

TEST(Growth, MorePlansAreNoLeak) {
  int alarms = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) alarms += growth_of(readings(28, 0, seed, true)).grows(0);
  EXPECT_LE(alarms, 2);
  EXPECT_TRUE(growth_of(readings(28, 15 * kMb, 1, true)).grows(50 * kMb)) << "and a leak beside them is one";
}

TEST(Growth, FewReadingsTellNothing) {
  EXPECT_FALSE(growth_of({}).known);
  EXPECT_FALSE(growth_of(readings(7, 100 * kMb, 1)).known);
  for (int seed = 0; seed < 50; ++seed) EXPECT_TRUE(growth_of(readings(13, 30 * kMb, static_cast<uint32_t>(seed))).known);
}

TEST(Growth, WhatIsAllowedIsAllowed) {
  EXPECT_FALSE(growth_of(readings(28, 6 * kMb, 1)).grows(300 * kMb));
  EXPECT_FALSE(growth_of(readings(28, -6 * kMb, 1)).grows(0)) << "less memory is not growth";
}

}  // namespace
}  // namespace keirin::test
