// SPDX-License-Identifier: Apache-2.0
//
// The decision rule on simulated machines, 1,000 series a case: who is not faster is not accepted, whatever the noise; who is
// clearly faster is found, and soon. The rates are the promise of rule G1.
#include <gtest/gtest.h>

#include "tests/unit/tune/fake_machine.h"

namespace keirin {
namespace {

using test::FakeMachine;
using test::Noise;

constexpr int kSeries = 1000;

struct Tally {
  int accepted = 0, rejected = 0, undecided = 0, other = 0;
  double blocks = 0;        // mean over the accepted
};

Tally simulate(double gain, Noise noise, double call_ns = 1e6, int series = kSeries) {
  Tally tally;
  for (int i = 0; i < series; ++i) {
    FakeMachine machine(0x5eed + static_cast<uint64_t>(i) * 7919, noise);
    const Result<RaceSheet> sheet =
        race({machine.runner("a", call_ns), machine.runner("b", call_ns / (1 + gain))}, 0, machine.options());
    EXPECT_TRUE(sheet.ok());
    const RaceRow& row = sheet->rows[1];
    if (row.outcome == RaceOutcome::kAccept) {
      ++tally.accepted;
      tally.blocks += row.blocks;
      EXPECT_EQ(sheet->winner, 1u);
    } else {
      EXPECT_EQ(sheet->winner, 0u) << "what is not accepted never wins";
      if (row.outcome == RaceOutcome::kReject || row.outcome == RaceOutcome::kScreened) ++tally.rejected;
      else if (row.outcome == RaceOutcome::kUndecided) ++tally.undecided;
      else ++tally.other;
    }
  }
  if (tally.accepted) tally.blocks /= tally.accepted;
  printf("gain %4.1f %%  noise %4.1f %%: accepted %4d rejected %4d undecided %4d, %.1f blocks\n", 100 * gain,
         100 * noise.deviation, tally.accepted, tally.rejected, tally.undecided, tally.blocks);
  return tally;
}

constexpr double kDeviations[] = {0.005, 0.02, 0.05, 0.10};

Noise plain(double s) { return {s, 0, 0, 0}; }
Noise rough(double s) { return {s, 0.5, 1e-5, 0.05}; }  // correlated, drifting, one call in twenty takes 1.5x

TEST(RaceSimulation, NoGainIsNotAccepted) {
  for (const double s : kDeviations) EXPECT_LE(simulate(0, plain(s)).accepted, kSeries / 1000) << s;
}

TEST(RaceSimulation, NoGainOnARoughMachineIsNotAccepted) {
  for (const double s : kDeviations) EXPECT_LE(simulate(0, rough(s)).accepted, kSeries / 1000) << s;
}

TEST(RaceSimulation, ALossIsNeverAccepted) {
  for (const double s : kDeviations) EXPECT_EQ(simulate(-0.05, rough(s)).accepted, 0) << s;
}

TEST(RaceSimulation, AGainAtTheThresholdIsRarelyAccepted) {
  for (const double s : kDeviations) EXPECT_LE(simulate(0.02, plain(s)).accepted, kSeries * 11 / 1000) << s;
  for (const double s : kDeviations) EXPECT_LE(simulate(0.02, rough(s)).accepted, kSeries * 11 / 1000) << s;
}

TEST(RaceSimulation, FivePercentAtTwoPercentNoiseIsAlwaysFoundSoon) {
  for (const Noise& noise : {plain(0.02), rough(0.02)}) {
    const Tally t = simulate(0.05, noise);
    EXPECT_EQ(t.accepted, kSeries);
    EXPECT_LE(t.blocks, 15);
  }
}

TEST(RaceSimulation, TenPercentAtTenPercentNoiseIsAlwaysFound) {
  EXPECT_EQ(simulate(0.10, plain(0.10)).accepted, kSeries);
}

// One call is a sample where calls are long, and the time of a race ends soon: on a rough machine some gains stay unseen.
TEST(RaceSimulation, LongCalls) {
  for (const Noise& noise : {plain(0.02), rough(0.02), Noise{0.02, 0.5, 2e-3, 0.05}}) {  // the last: a tenth slower within a race
    EXPECT_LE(simulate(0, noise, 5e8).accepted, kSeries / 1000);
    EXPECT_LE(simulate(0.02, noise, 5e8).accepted, kSeries * 11 / 1000);
    EXPECT_GE(simulate(0.10, noise, 5e8).accepted, noise.outliers > 0 ? kSeries * 7 / 10 : kSeries * 99 / 100);
  }
}

}  // namespace
}  // namespace keirin
