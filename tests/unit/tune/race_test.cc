// SPDX-License-Identifier: Apache-2.0
//
// The rules of a race around the decision: warm-up, batches, screen, baseline, long calls, limits, contention, failures, winner.
// On a fake machine but for one test, which times real sleeps.
#include "core/tune/race.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>
#include <thread>

#include "core/base/files.h"
#include "core/tune/processors.h"
#include "tests/unit/tune/fake_machine.h"

namespace keirin {
namespace {

using test::FakeMachine;

const test::Noise kQuiet{0.01, 0, 0, 0};

RaceOutcome outcome(const Result<RaceSheet>& sheet, size_t i) { return sheet->rows[i].outcome; }

TEST(Race, TheFasterOneWinsAndTheGainIsMeasured) {
  FakeMachine m(1, kQuiet);
  const auto sheet = race({m.runner("eager", 1.5e6), m.runner("cpu/all", 1e6)}, 0, m.options());
  ASSERT_TRUE(sheet.ok());
  EXPECT_EQ(sheet->winner, 1u);
  EXPECT_EQ(outcome(sheet, 0), RaceOutcome::kBaseline);
  EXPECT_NEAR(sheet->rows[1].gain, 1.5, 0.02);
  EXPECT_LT(sheet->rows[1].gain_low, sheet->rows[1].gain);
  EXPECT_LT(sheet->rows[1].gain, sheet->rows[1].gain_high);
  EXPECT_NEAR(sheet->rows[0].ns, 1.5e6, 3e4);
  EXPECT_NEAR(sheet->rows[1].ns, 1e6, 2e4);
  EXPECT_EQ(sheet->rows[1].blocks, 10);
}

TEST(Race, PlantedSlowAndEqualOnesLose) {
  FakeMachine m(2, kQuiet);
  const auto sheet = race({m.runner("eager", 1e6), m.runner("slow", 1.1e6), m.runner("same", 1e6), m.runner("hopeless", 1e7)},
                          0, m.options());
  ASSERT_TRUE(sheet.ok());
  EXPECT_EQ(sheet->winner, 0u);
  EXPECT_EQ(outcome(sheet, 1), RaceOutcome::kReject);
  EXPECT_EQ(sheet->rows[1].note, "slower");
  EXPECT_EQ(outcome(sheet, 2), RaceOutcome::kReject);
  EXPECT_EQ(outcome(sheet, 3), RaceOutcome::kScreened);
  EXPECT_EQ(sheet->rows[3].blocks, 0) << "no race is spent on it";
}

TEST(Race, ShortCallsAreBatched) {
  FakeMachine m(3, kQuiet);
  const auto sheet = race({m.runner("eager", 1500), m.runner("fast", 1000)}, 0, m.options());
  ASSERT_TRUE(sheet.ok());
  EXPECT_EQ(sheet->winner, 1u);
  // 10 blocks of 4 samples of 3 batches of at least 200 us.
  EXPECT_GT(m.calls, 10 * 2 * 3 * 133);
}

TEST(Race, ReplayIsTheBaselineOnlyIfItWins) {
  {
    FakeMachine m(4, kQuiet);
    const auto sheet = race({m.runner("eager", 1e6), m.runner("replay", 0.7e6), m.runner("cpu/all", 0.8e6)}, 1, m.options());
    ASSERT_TRUE(sheet.ok());
    EXPECT_EQ(sheet->baseline, 1u);
    EXPECT_EQ(sheet->winner, 1u) << "faster than eager is not enough";
    EXPECT_NEAR(sheet->rows[1].ns, 0.7e6, 0.02e6);
    EXPECT_EQ(sheet->rows[1].baseline_ns, 0) << "eager's time would be shown as replay's";
    EXPECT_NEAR(sheet->rows[2].baseline_ns, 0.7e6, 0.02e6);
    EXPECT_EQ(outcome(sheet, 0), RaceOutcome::kReject);
    EXPECT_EQ(outcome(sheet, 2), RaceOutcome::kReject);
  }
  {
    FakeMachine m(5, kQuiet);
    const auto sheet = race({m.runner("eager", 1e6), m.runner("replay", 1.05e6), m.runner("cpu/all", 0.8e6)}, 1, m.options());
    ASSERT_TRUE(sheet.ok());
    EXPECT_EQ(sheet->baseline, 0u);
    EXPECT_EQ(sheet->winner, 2u);
    EXPECT_EQ(outcome(sheet, 1), RaceOutcome::kReject);
  }
}

TEST(Race, WithinTwoPercentTheSmallerMemoryWins) {
  FakeMachine m(6, kQuiet);
  const auto sheet = race({m.runner("eager", 1e6), m.runner("big", 0.500e6, 200), m.runner("small", 0.505e6, 100)}, 0, m.options());
  ASSERT_TRUE(sheet.ok());
  EXPECT_EQ(sheet->winner, 2u);
  const auto apart = race({m.runner("eager", 1e6), m.runner("big", 0.4e6, 200), m.runner("small", 0.5e6, 100)}, 0, m.options());
  EXPECT_EQ(apart->winner, 1u);
}

TEST(Race, FiveHundredMillisecondsAreDecidedWithinTheLimit) {
  FakeMachine m(7, kQuiet);
  const double begin = m.now_ns();
  const auto sheet = race({m.runner("eager", 5e8), m.runner("best", 4e8), m.runner("second", 4.2e8), m.runner("third", 4.4e8)}, 0,
                          m.options());
  ASSERT_TRUE(sheet.ok());
  EXPECT_EQ(sheet->winner, 1u);
  EXPECT_EQ(outcome(sheet, 1), RaceOutcome::kAccept);
  EXPECT_EQ(outcome(sheet, 2), RaceOutcome::kAccept) << "it shares the samples of the baseline";
  EXPECT_EQ(outcome(sheet, 3), RaceOutcome::kScreened) << "only the two best are raced";
  EXPECT_LE(m.calls, 30 + 4 * 4) << "30 calls for the first look, the rest is warm-up";
  EXPECT_LT(m.now_ns() - begin, 22e9);
}

TEST(Race, FiveHundredMillisecondsOfEqualTimeEndAtTheLimit) {
  FakeMachine m(8, {0.05, 0, 0, 0});
  const double begin = m.now_ns();
  const auto sheet = race({m.runner("eager", 5e8), m.runner("same", 4.9e8)}, 0, m.options());
  ASSERT_TRUE(sheet.ok());
  EXPECT_EQ(sheet->winner, 0u);
  EXPECT_LT(m.now_ns() - begin, 60e9);
  EXPECT_GE(sheet->rows[1].blocks, 10);
}

// Blocks that were disturbed are none of those of the first look.
TEST(Race, LongCallsAreDecidedThoughSomeAreDisturbed) {
  FakeMachine m(8, kQuiet);
  RaceOptions o = m.options();
  o.limit_ns = 500'000'000;
  Runner fast = m.runner("fast", 1e8);
  int calls = 0;
  fast.call = [&, call = fast.call] {
    if (++calls % 9 == 0) m.others.waited += 1e9;
    return call();
  };
  const auto sheet = race({m.runner("eager", 1.3e8), fast}, 0, o);
  ASSERT_TRUE(sheet.ok());
  EXPECT_EQ(outcome(sheet, 1), RaceOutcome::kAccept) << sheet->rows[1].note << ", " << sheet->rows[1].blocks << " blocks";
}

TEST(Race, ShortCallsEndAtTheLimitToo) {
  FakeMachine m(9, {0.10, 0, 0, 0});
  RaceOptions o = m.options();
  o.limit_ns = 3'000'000'000;
  const double begin = m.now_ns();
  const auto sheet = race({m.runner("eager", 1.5e7), m.runner("same", 1.47e7)}, 0, o);
  ASSERT_TRUE(sheet.ok());
  EXPECT_EQ(sheet->winner, 0u);
  EXPECT_LT(m.now_ns() - begin, 9e9);
}

// As background work is held: neither the samples nor the limit know of it.
TEST(Race, WhatIsBetweenBatchesCountsNowhere) {
  FakeMachine with(11, kQuiet), without(11, kQuiet);
  RaceOptions o = with.options();
  o.limit_ns = 1'000'000'000;
  int times = 0;
  o.between = [&] {
    ++times;
    with.pass(1e9);
  };
  const auto held = race({with.runner("eager", 1.03e6), with.runner("cpu/all", 1e6)}, 0, o);
  const auto plain = race({without.runner("eager", 1.03e6), without.runner("cpu/all", 1e6)}, 0, without.options());
  ASSERT_TRUE(held.ok() && plain.ok());
  EXPECT_GT(plain->rows[1].blocks, 10) << "decided at the first look, which the limit does not cut";
  EXPECT_GT(times, plain->rows[1].blocks * 4 * 3);
  EXPECT_EQ(held->winner, plain->winner);
  EXPECT_EQ(held->rows[1].blocks, plain->rows[1].blocks);
  EXPECT_NEAR(held->rows[1].gain, plain->rows[1].gain, 1e-3);
  EXPECT_NEAR(held->rows[1].ns, plain->rows[1].ns, 1e2);
}

// A load that never ends: whatever was timed, nothing of it is told.
TEST(Race, ADisturbedRaceTellsNothing) {
  for (const double call_ns : {7e3, 1e6, 5e7}) {
    FakeMachine m(10, kQuiet);
    m.load = {1e12, 0, 0.3 * call_ns};
    const double begin = m.now_ns();
    const auto sheet = race({m.runner("eager", call_ns), m.runner("fast", 0.5 * call_ns), m.runner("slow", 5 * call_ns)}, 0, m.options());
    ASSERT_TRUE(sheet.ok());
    EXPECT_EQ(sheet->winner, 0u);
    EXPECT_NE(sheet->disturbed.find("others had the processor"), std::string::npos) << sheet->disturbed;
    for (size_t i : {size_t{1}, size_t{2}}) {
      if (outcome(sheet, i) == RaceOutcome::kScreened) continue;  // of long calls only two race
      EXPECT_EQ(outcome(sheet, i), RaceOutcome::kDisturbed) << "a disturbed screen says nothing";
      EXPECT_EQ(sheet->rows[i].ns, 0);
      EXPECT_EQ(sheet->rows[i].gain, 1);
    }
    EXPECT_EQ(sheet->rows[0].ns, 0);
    EXPECT_LT(m.now_ns() - begin, 25e9) << "patience ends";
  }
}

// Others who run beside calls, on the other half of a core, make a team's calls slower and one thread's not: no call waits for anybody.
TEST(Race, WhereMoreWantToRunThanThereAreProcessorsNothingIsTold) {
  const auto sheet_of = [](test::Load load) {
    FakeMachine m(7, kQuiet);
    m.load = load;
    const Runner fast{"fast", [&m] {
                        m.spend(5e4 * (m.others.is_crowded() ? 1.4 : 1));
                        return Status();
                      }};
    return race({m.runner("eager", 1e5), fast}, 0, m.options());
  };
  const auto always = sheet_of({1e12, 0, 0, true});
  ASSERT_TRUE(always.ok());
  EXPECT_NE(always->disturbed.find("others had the processor"), std::string::npos) << always->disturbed;
  const auto at_times = sheet_of({1e7, 1e8, 0, true});
  ASSERT_TRUE(at_times.ok());
  EXPECT_EQ(at_times->disturbed, "");
  EXPECT_NEAR(at_times->rows[1].gain, 2, 0.05) << "of the quiet stretches";
}

// The load that doubled and vanished figures: others want the processor for 100 ms, ten times in two seconds. Its turns are waited out,
// or the race says that it was disturbed; what it tells is the figure of a quiet machine.
TEST(Race, ALoadThatComesAndGoesChangesNoFigure) {
  int told = 0;
  for (uint64_t seed = 0; seed < 40; ++seed)
    for (const double call_ns : {7e3, 1e5, 5e6}) {
      FakeMachine m(seed, kQuiet);
      m.load = {1e8, 1e8, 4e6};
      m.pass(static_cast<double>(seed) * 5e6);
      // The one that answers in a moment waits as long as the other: their ratio under load is another.
      const auto sheet = race({m.runner("eager", call_ns), m.runner("fast", call_ns / 5)}, 0, m.options());
      ASSERT_TRUE(sheet.ok());
      if (!sheet->disturbed.empty()) {
        EXPECT_EQ(sheet->winner, 0u);
        continue;
      }
      ++told;
      EXPECT_EQ(sheet->winner, 1u);
      EXPECT_NEAR(sheet->rows[1].gain, 5, 0.25) << call_ns;
      EXPECT_NEAR(sheet->rows[0].ns, call_ns, 0.05 * call_ns);
      EXPECT_NEAR(sheet->rows[1].ns, call_ns / 5, 0.01 * call_ns);
    }
  EXPECT_GT(told, 60) << "saying nothing is not the aim";
}

TEST(Race, FewDisturbedStretchesAreTakenAgain) {
  FakeMachine m(11, kQuiet);
  m.load = {1e6, 4e7, 5e6};
  const auto sheet = race({m.runner("eager", 1.5e6), m.runner("fast", 1e6)}, 0, m.options());
  ASSERT_TRUE(sheet.ok());
  EXPECT_TRUE(sheet->disturbed.empty()) << sheet->disturbed;
  EXPECT_EQ(outcome(sheet, 1), RaceOutcome::kAccept);
  EXPECT_NEAR(sheet->rows[1].gain, 1.5, 0.02);
  EXPECT_GT(m.others.waited, 0) << "else nothing was disturbed";
}

// A machine whose processor time goes elsewhere without a thread noticing.
TEST(Race, StolenTimeIsNoMeasurement) {
  FakeMachine m(12, kQuiet);
  Runner eager = m.runner("eager", 1e6), fast = m.runner("fast", 0.5e6);
  double share = 0;
  for (Runner* runner : {&eager, &fast})
    runner->call = [&m, &share, call = runner->call] {
      m.others.used += 1e8;
      m.others.stolen += share * 1e8;
      return call();
    };
  EXPECT_EQ(outcome(race({eager, fast}, 0, m.options()), 1), RaceOutcome::kAccept);
  share = 0.1;
  EXPECT_EQ(outcome(race({eager, fast}, 0, m.options()), 1), RaceOutcome::kAccept) << "as on many machines, and medians bear it";
  share = 0.3;
  const auto sheet = race({eager, fast}, 0, m.options());
  EXPECT_EQ(outcome(sheet, 1), RaceOutcome::kDisturbed);
  EXPECT_NE(sheet->disturbed.find("hypervisor"), std::string::npos);
}

// A device that others use, or that is not the same at the end, measured nothing. One that was not told of did.
TEST(Race, TheDevicesOwnDisturbanceIsSeen) {
  const auto run = [](std::vector<DeviceCondition> told) {
    FakeMachine m(12, kQuiet);
    RaceOptions o = m.options();
    size_t asked = 0;
    o.condition = [&] { return told[std::min(asked++, told.size() - 1)]; };
    auto sheet = race({m.runner("eager", 1e6), m.runner("fast", 0.5e6)}, 0, o);
    EXPECT_TRUE(sheet.ok());
    return std::move(*sheet);
  };
  EXPECT_EQ(run({{}}).winner, 1u);
  EXPECT_EQ(run({{1980, false, 0}, {1755, false, 3}}).winner, 1u) << "as under any load";
  const std::vector<std::pair<DeviceCondition, std::string>> bad{{{345, false, 0}, "from 1980 to 345 MHz"},
                                                                 {{1980, true, 0}, "held the device's clocks down"},
                                                                 {{1980, false, 40}, "other processes had work on the device"}};
  for (const auto& [after, why] : bad) {
    const RaceSheet sheet = run({{1980, false, 0}, after});
    EXPECT_EQ(sheet.winner, 0u);
    EXPECT_EQ(sheet.rows[1].outcome, RaceOutcome::kDisturbed);
    EXPECT_NE(sheet.disturbed.find(why), std::string::npos) << sheet.disturbed;
  }
}

// What no counter shows: the baseline takes twice the time in every other stretch of the race. Its gain is not a figure then; who is faster
// than it at either time is, and who is only at one of them is not.
TEST(Race, ABaselineThatIsTwoThingsGivesNoFigure) {
  const auto run = [](double fast_ns, uint64_t confirm_ns) {
    FakeMachine m(13, kQuiet);
    Runner eager{"eager", [&]() -> Status {
                   m.spend(std::fmod(m.now_ns(), 4e7) < 2e7 ? 1e6 : 2e6);
                   return {};
                 }};
    RaceOptions o = m.options();
    o.confirm_ns = confirm_ns;
    auto sheet = race({eager, m.runner("fast", fast_ns)}, 0, o);
    EXPECT_TRUE(sheet.ok());
    return std::move(*sheet);
  };
  const RaceSheet published = run(0.5e6, 4'000'000'000);
  EXPECT_EQ(published.winner, 0u);
  EXPECT_EQ(published.rows[1].outcome, RaceOutcome::kDisturbed);
  EXPECT_NE(published.disturbed.find("deviates"), std::string::npos) << published.disturbed;
  const RaceSheet chosen = run(0.5e6, 0);
  EXPECT_EQ(chosen.winner, 1u) << "whichever of its times eager takes";
  EXPECT_TRUE(chosen.disturbed.empty()) << chosen.disturbed;
  EXPECT_NEAR(chosen.rows[1].gain_low, 2, 0.1);
  EXPECT_NEAR(chosen.rows[1].gain_high, 4, 0.2);
  const RaceSheet between = run(1.25e6, 0);
  EXPECT_EQ(between.winner, 0u);
  EXPECT_EQ(between.rows[1].outcome, RaceOutcome::kDisturbed);
}

// Blocks tell 2x and medians 2.6x, because times move by a third for a while, eager's more often: no figure, and no doubt who is faster.
TEST(Race, ABaselineThatContradictsItselfLosesToWhatIsAlwaysFaster) {
  const auto run = [](uint64_t confirm_ns) {
    FakeMachine m(13, kQuiet);
    const auto phase = [&m] { return m.calls / 2 % 3; };
    Runner eager{"eager", [&]() -> Status {
                   m.spend(phase() == 0 ? 30e6 : 39e6);
                   return {};
                 }};
    Runner fast{"fast", [&]() -> Status {
                  m.spend(phase() == 1 ? 19.5e6 : 15e6);
                  return {};
                }};
    RaceOptions o = m.options();
    o.confirm_ns = confirm_ns;
    auto sheet = race({eager, fast}, 0, o);
    EXPECT_TRUE(sheet.ok());
    return std::move(*sheet);
  };
  const RaceSheet chosen = run(0);
  EXPECT_EQ(chosen.winner, 1u) << chosen.disturbed;
  EXPECT_TRUE(chosen.disturbed.empty()) << chosen.disturbed;
  EXPECT_LT(chosen.rows[1].gain_low, 1.7) << "the interval reaches from the one to the other";
  const RaceSheet published = run(4'000'000'000);
  EXPECT_EQ(published.winner, 0u);
  EXPECT_EQ(published.rows[1].outcome, RaceOutcome::kDisturbed);
}

// Eager that is bound by the host was seen at twice its time for a tenth of a second: the race is held again, and tells the figure.
TEST(Race, ABurstIsWaitedOut) {
  FakeMachine m(13, kQuiet);
  int calls_in_burst = 0;
  Runner eager{"eager", [&]() -> Status {
                 const bool burst = calls_in_burst < 60 && m.calls > 200;
                 calls_in_burst += burst && m.calls % 2 == 0;
                 m.spend(burst && m.calls % 2 == 0 ? 2e6 : 1e6);
                 return {};
               }};
  const auto sheet = race({eager, m.runner("fast", 0.5e6)}, 0, m.options());
  ASSERT_TRUE(sheet.ok());
  EXPECT_TRUE(sheet->disturbed.empty()) << sheet->disturbed;
  EXPECT_EQ(sheet->winner, 1u);
  EXPECT_NEAR(sheet->rows[1].gain, 2, 0.05);
}

// A replay that is faster than eager at all of eager's times is the baseline, and what races against it is published.
TEST(Race, AnUnsteadyEagerIsNoReasonToDoubtItsReplay) {
  FakeMachine m(13, kQuiet);
  Runner eager{"eager", [&]() -> Status {
                 m.spend(std::fmod(m.now_ns(), 4e7) < 2e7 ? 3e6 : 6e6);
                 return {};
               }};
  RaceOptions o = m.options();
  o.confirm_ns = 4'000'000'000;
  const auto sheet = race({eager, m.runner("replay", 2e6), m.runner("fast", 1e6)}, 1, o);
  ASSERT_TRUE(sheet.ok());
  EXPECT_TRUE(sheet->disturbed.empty()) << sheet->disturbed;
  EXPECT_EQ(sheet->baseline, 1u);
  EXPECT_EQ(sheet->winner, 2u);
  EXPECT_NEAR(sheet->rows[2].gain, 2, 0.05);
}

// The machine is one thing while the race is held and another a second later: what is published is what both were, or nothing.
TEST(Race, AWinnerIsConfirmedOverTime) {
  const auto run = [](double later, double period_ns) {
    FakeMachine m(15, kQuiet);
    Runner eager{"eager", [&m, later, period_ns]() -> Status {
                   const bool first = m.now_ns() < 1.3e9 || (period_ns > 0 && std::fmod(m.now_ns(), 2 * period_ns) < period_ns);
                   m.spend(first ? 2e6 : later * 2e6);
                   return {};
                 }};
    RaceOptions o = m.options();
    o.confirm_ns = 4'000'000'000;
    const double begin = m.now_ns();
    auto sheet = race({eager, m.runner("fast", 1e6)}, 0, o);
    EXPECT_TRUE(sheet.ok());
    EXPECT_GT(m.now_ns() - begin, 4e9);
    return std::move(*sheet);
  };
  const RaceSheet same = run(1, 1e9);
  EXPECT_EQ(same.winner, 1u);
  EXPECT_NEAR(same.rows[1].gain, 2, 0.02);
  EXPECT_EQ(same.rows[1].blocks, 10 + 40);
  const RaceSheet gone = run(0.5, 0);  // the gain was there in the race, and never again
  EXPECT_EQ(gone.winner, 0u);
  EXPECT_EQ(gone.rows[1].outcome, RaceOutcome::kUndecided);
  EXPECT_NEAR(gone.rows[1].gain, 1, 0.02);
  const RaceSheet changing = run(2.5, 3e8);
  EXPECT_EQ(changing.winner, 0u);
  EXPECT_EQ(changing.rows[1].outcome, RaceOutcome::kDisturbed);
  EXPECT_NE(changing.disturbed.find("spread over 4 s"), std::string::npos) << changing.disturbed;
}

// One stretch in ten is disturbed once the race is over: few, and yet hardly a block of a dozen is quiet. What nothing confirms is no
// figure.
TEST(Race, AFigureIsConfirmedByQuietBlocksOrNotAtAll) {
  struct Rare final : Interference {
    explicit Rare(const FakeMachine& machine) : m(machine) {}
    uint64_t waited_ns() override {  // twice for a stretch
      if (++asked % 20 == 0 && m.now_ns() > 1.2e9) waited += 1'000'000'000;
      return waited;
    }
    uint64_t stolen_ns() override { return 0; }
    uint64_t used_ns() override { return 0; }
    const FakeMachine& m;
    uint64_t asked = 0, waited = 0;
  };
  FakeMachine m(15, kQuiet);
  Rare rare(m);
  RaceOptions o = m.options();
  o.interference = &rare;
  o.patience_ns = 0;
  o.confirm_ns = 4'000'000'000;
  const auto sheet = race({m.runner("eager", 2e6), m.runner("fast", 1e6)}, 0, o);
  ASSERT_TRUE(sheet.ok());
  EXPECT_EQ(sheet->winner, 0u);
  EXPECT_EQ(sheet->rows[1].outcome, RaceOutcome::kDisturbed);
  EXPECT_NE(sheet->disturbed.find("of 40 blocks"), std::string::npos) << sheet->disturbed;
}

// A hypervisor moves the machine's processors apart, and eager's team takes longer: the figure is that of the one place or the other, and
// says of which; where they are moved all the time there is none.
TEST(Race, AFigureIsOfOnePlace) {
  const auto run = [](auto is_far) {
    FakeMachine m(15, kQuiet);
    Runner eager{"eager", [&]() -> Status {
                   m.spend(is_far(m.now_ns()) ? 3e6 : 2e6);
                   return {};
                 }};
    RaceOptions o = m.options();
    o.confirm_ns = 4'000'000'000;
    o.apart_ns = [&] { return is_far(m.now_ns()) ? 380.0 : 95.0; };
    auto sheet = race({eager, m.runner("fast", 1e6)}, 0, o);
    EXPECT_TRUE(sheet.ok());
    return std::move(*sheet);
  };
  const RaceSheet near = run([](double ns) { return ns > 1.2e9 && ns < 2.2e9; });
  EXPECT_EQ(near.winner, 1u) << near.disturbed;
  EXPECT_NEAR(near.rows[1].gain, 2, 0.02);
  EXPECT_NEAR(near.rows[1].baseline_ns, 2e6, 5e4);
  EXPECT_EQ(near.apart_ns, 95);
  EXPECT_LT(near.rows[1].blocks, 10 + 40);
  const RaceSheet far = run([](double ns) { return ns > 0.5e9; });
  EXPECT_EQ(far.winner, 1u) << far.disturbed;
  EXPECT_NEAR(far.rows[1].gain, 3, 0.03);
  EXPECT_EQ(far.apart_ns, 380);
  const RaceSheet both = run([](double ns) { return std::fmod(ns, 1e9) < 5e8; });
  EXPECT_EQ(both.winner, 0u);
  EXPECT_EQ(both.rows[1].outcome, RaceOutcome::kDisturbed);
  EXPECT_NE(both.disturbed.find("moved"), std::string::npos) << both.disturbed;
}

// What a cache line takes is told of real processors, where there are two.
TEST(Race, ProcessorsAreSomewhere) {
  const double apart_ns = processors_apart_ns();
  if (std::thread::hardware_concurrency() < 2) EXPECT_EQ(apart_ns, 0);
  else EXPECT_TRUE(apart_ns == 0 || (apart_ns > 5 && apart_ns < 1e5)) << apart_ns;
  EXPECT_TRUE(same_place(90, 100) && same_place(100, 90) && same_place(0, 90) && same_place(90, 0));
  EXPECT_FALSE(same_place(90, 380) || same_place(380, 90));
}

// The confirmation lasts as long as it says: what the blocks take is not rested for.
TEST(Race, AConfirmationOfShortCallsLastsAsLongAsItSays) {
  const auto lasts = [](uint64_t confirm_ns) {
    FakeMachine m(15, kQuiet);
    RaceOptions o = m.options();
    o.confirm_ns = confirm_ns;
    const double begin = m.now_ns();
    EXPECT_EQ(race({m.runner("eager", 2e4), m.runner("fast", 1e4)}, 0, o)->winner, 1u);
    return m.now_ns() - begin;
  };
  EXPECT_NEAR(lasts(4'000'000'000) - lasts(0), 4e9, 4e7);
}

// A race that tells nothing leaves the patience to the next one, to its last pause.
TEST(Race, WhatTellsNothingCostsNoPatience) {
  FakeMachine m(12, kQuiet);
  Runner eager = m.runner("eager", 1e6), first = m.runner("first", 0.5e6), second = m.runner("second", 0.52e6);
  bool stolen = true;
  const auto takes = [&m, &stolen](const std::function<Status()>& call) {
    m.others.used += 1e8;
    m.others.stolen += stolen ? 3e7 : 0;
    return call();
  };
  first.call = [&, call = first.call] { return takes(call); };
  second.call = [&, call = second.call] {
    stolen = false;
    return takes(call);
  };
  RaceOptions o = m.options();
  o.patience_ns = 2'000'000;  // one pause
  int raced = 0;
  first.call = [&, call = first.call] {
    ++raced;
    stolen = true;
    return call();
  };
  const auto sheet = race({eager, first, second}, 0, o);
  ASSERT_TRUE(sheet.ok());
  EXPECT_EQ(outcome(sheet, 1), RaceOutcome::kDisturbed);
  EXPECT_EQ(outcome(sheet, 2), RaceOutcome::kAccept) << sheet->rows[2].note;
  EXPECT_GT(raced, 0);
}

// Each runner has a time of its own in the screen, and the machine may be slow in one of them.
TEST(Race, WhoIsTimedInASlowMomentIsNotScreenedOut) {
  for (const double call_ns : {1e5, 1e6, 6e7}) {
    FakeMachine m(24, kQuiet);
    double slow_until = 0;
    const Runner fast{"fast", [&] {
                        if (slow_until == 0) slow_until = m.now_ns() + 5 * call_ns;
                        m.spend(call_ns * (m.now_ns() < slow_until ? 2.4 : 1) / 1.5);
                        return Status();
                      }};
    const auto sheet = race({m.runner("eager", call_ns), fast}, 0, m.options());
    ASSERT_TRUE(sheet.ok());
    EXPECT_EQ(sheet->winner, 1u) << call_ns << ": " << sheet->rows[1].note;
  }
}

// Forced is forced: its figures are those of a race, whatever the screen says.
TEST(Race, WhatMustRaceIsNotScreenedOut) {
  for (const double call_ns : {1e6, 5e7}) {
    FakeMachine m(14, kQuiet);
    RaceOptions o = m.options();
    o.one_must_race = {2, 3};
    const auto sheet = race({m.runner("eager", call_ns), m.runner("fast", 0.5 * call_ns), m.runner("a", 4 * call_ns),
                             m.runner("b", 3 * call_ns)}, 0, o);
    ASSERT_TRUE(sheet.ok());
    EXPECT_EQ(outcome(sheet, 2), RaceOutcome::kScreened);
    EXPECT_EQ(sheet->rows[2].gain_low, sheet->rows[2].gain) << "no interval without a race";
    EXPECT_EQ(outcome(sheet, 3), RaceOutcome::kReject);
    EXPECT_GT(sheet->rows[3].blocks, 0);
    EXPECT_NEAR(sheet->rows[3].gain, 1.0 / 3, 0.02);
    EXPECT_LT(sheet->rows[3].gain_high, 0.4);
    EXPECT_EQ(sheet->winner, 1u);
  }
}

TEST(Race, ACandidateThatFailsLosesAndABaselineThatFailsIsAnError) {
  FakeMachine m(12, kQuiet);
  int calls = 0;
  Runner breaks{"breaks", [&]() -> Status {
                  m.spend(0.75e6);
                  if (++calls > 40) return Status(Code::k_internal, "it broke");
                  return {};
                }};
  const auto sheet = race({m.runner("eager", 1e6), breaks, m.runner("fast", 0.8e6)}, 0, m.options());
  ASSERT_TRUE(sheet.ok());
  EXPECT_EQ(outcome(sheet, 1), RaceOutcome::kFailed);
  EXPECT_EQ(sheet->rows[1].note, "a call failed: it broke");
  EXPECT_EQ(sheet->winner, 2u);
  calls = 1000;
  EXPECT_FALSE(race({breaks, m.runner("fast", 0.8e6)}, 0, m.options()).ok());
  const auto broken = race({m.runner("eager", 1e6), breaks}, 0, m.options());
  EXPECT_EQ(outcome(broken, 1), RaceOutcome::kFailed);
}

// Whoever drops out, and wherever it stood: what is published is the row of the fastest that is left, under its own name. The
// expected winner is found from what was planted, not from what the sheet says.
TEST(Race, WhoeverDropsOutTheWinnerIsTheFastestOfTheRest) {
  std::mt19937_64 random(17);
  int won = 0, dropped_before = 0;
  for (int trial = 0; trial < 200; ++trial) {
    FakeMachine m(1000 + static_cast<uint64_t>(trial), kQuiet);
    std::vector<int> calls(8, 0);
    std::vector<Runner> runners{m.runner("eager", 1e6)};
    std::vector<double> ns{1e6};  // infinite: it fails sooner or later
    const size_t count = 2 + random() % 5;
    std::vector<double> speeds{0.45e6, 0.49e6, 0.53e6, 0.57e6, 1.1e6, 5e6};  // the fast ones: none is screened out for another
    std::shuffle(speeds.begin(), speeds.end(), random);
    for (size_t i = 1; i <= count; ++i) {
      const double own = speeds[i - 1];
      const bool fails = random() % 3 == 0;
      const int after = static_cast<int>(random() % 3) * 12;  // at once, while warming up, in its race
      runners.push_back({"c" + std::to_string(i), [&m, &calls, i, own, fails, after]() -> Status {
                           m.spend(own);
                           return fails && ++calls[i] > after ? Status(Code::k_internal, "it broke") : Status();
                         }});
      ns.push_back(fails ? INFINITY : own);
    }
    const auto sheet = race(runners, 0, m.options());
    ASSERT_TRUE(sheet.ok());
    size_t expected = 0;
    for (size_t i = 1; i < ns.size(); ++i)
      if (ns[i] < ns[expected] && ns[i] < 1e6) expected = i;
    for (size_t i = 1; i < ns.size(); ++i) {
      EXPECT_EQ(sheet->rows[i].name, runners[i].name);
      EXPECT_TRUE(std::isfinite(ns[i]) || outcome(sheet, i) == RaceOutcome::kFailed || outcome(sheet, i) == RaceOutcome::kScreened) << i;
      if (i < expected && outcome(sheet, i) == RaceOutcome::kFailed) ++dropped_before;
    }
    std::string rows;
    for (const RaceRow& row : sheet->rows)
      rows += "\n" + row.name + " " + std::to_string(row.ns) + " " + std::string(outcome_name(row.outcome)) + ": " + row.note;
    ASSERT_EQ(sheet->winner, expected) << "trial " << trial << rows;
    won += expected > 0;
  }
  EXPECT_GT(won, 100);
  EXPECT_GT(dropped_before, 30) << "else no index could be wrong";
}

// What a race costs is set by its calls and by how clear its answer is, never by the time that it was allowed.
TEST(Race, ADecidedRaceEndsWhateverItsLimit) {
  for (const double eager : {5e3, 1e6, 3e7, 4e8})
    for (const double candidate : {0.5, 0.8, 1.15, 3.0}) {
      std::vector<double> spent;
      std::vector<int> calls;
      for (const uint64_t limit : {uint64_t{30'000'000'000}, uint64_t{300'000'000'000}, uint64_t{3'000'000'000'000}}) {
        FakeMachine m(18, kQuiet);
        RaceOptions o = m.options();
        o.limit_ns = limit;
        const double begin = m.now_ns();
        const auto sheet = race({m.runner("eager", eager), m.runner("candidate", candidate * eager)}, 0, o);
        ASSERT_TRUE(sheet.ok());
        EXPECT_NE(outcome(sheet, 1), RaceOutcome::kUndecided);
        EXPECT_LE(sheet->rows[1].blocks, kRaceLooks[0].blocks);
        spent.push_back(m.now_ns() - begin);
        calls.push_back(m.calls);
      }
      EXPECT_EQ(spent[0], spent[1]) << eager << " ns, candidate " << candidate;
      EXPECT_EQ(spent[0], spent[2]);
      EXPECT_EQ(calls[0], calls[2]);
    }
}

TEST(Race, CancelLeavesTheBaseline) {
  FakeMachine m(13, {0.10, 0, 0, 0});
  std::atomic<bool> cancel{false};
  RaceOptions o = m.options();
  o.cancel = &cancel;
  int calls = 0;
  Runner watched{"watched", [&]() -> Status {
                   m.spend(0.97e6);
                   cancel = ++calls > 60;
                   return {};
                 }};
  const auto sheet = race({m.runner("eager", 1e6), watched}, 0, o);
  ASSERT_TRUE(sheet.ok());
  EXPECT_EQ(outcome(sheet, 1), RaceOutcome::kCancelled);
  EXPECT_EQ(sheet->winner, 0u);
  EXPECT_LT(calls, 70);
}

// Calls of eager overlap when nobody waits between them, calls of the candidate do not: better by latency, worse by throughput.
TEST(Race, AWinnerMustNotLoseTheOtherHint) {
  FakeMachine m(14, kQuiet);
  double pending = 0;
  RaceOptions o = m.options();
  o.wait = [&]() -> Status {
    m.spend(pending + 1);
    pending = 0;
    return {};
  };
  Runner eager{"eager", [&]() -> Status {
                       pending = pending > 0 ? pending + 1e4 : 1e5;
                       return {};
                     }};
  Runner candidate{"candidate", [&]() -> Status {
                           pending += 0.9e5;
                           return {};
                         }};
  const auto sheet = race({eager, candidate}, 0, o);
  ASSERT_TRUE(sheet.ok());
  EXPECT_EQ(outcome(sheet, 1), RaceOutcome::kReject);
  EXPECT_NE(sheet->rows[1].note.find("throughput"), std::string::npos) << sheet->rows[1].note;
}

TEST(Race, AFirstCallThatBuildsSomethingIsReported) {
  FakeMachine m(15, kQuiet);
  bool first = true;
  Runner builds{"builds", [&]() -> Status {
                  m.spend(first ? 5e7 : 0.8e6);
                  first = false;
                  return {};
                }};
  const auto sheet = race({m.runner("eager", 1e6), builds}, 0, m.options());
  ASSERT_TRUE(sheet.ok());
  EXPECT_GT(sheet->rows[1].first_over_steady, 30);
  EXPECT_LT(sheet->rows[0].first_over_steady, 2);
  EXPECT_EQ(sheet->winner, 1u) << "the first call is not part of the figure";
}

TEST(Race, OneRacePerDevice) {
  const std::string path = testing::TempDir() + "keirin-race-lock";
  FakeMachine m(16, kQuiet);
  RaceOptions o = m.options();
  o.lock_path = path;
  o.limit_ns = 20'000'000;
  {
    const auto held = FileLock::take(path, std::chrono::milliseconds(0));
    ASSERT_TRUE(held.ok() && *held);
    EXPECT_EQ(race({m.runner("eager", 1e6)}, 0, o).status().code(), Code::k_exhausted);
  }
  EXPECT_TRUE(race({m.runner("eager", 1e6)}, 0, o).ok());
  std::filesystem::remove(path);
}

TEST(Race, RealSleeps) {
  const auto sleeper = [](const char* name, int us) {
    return Runner{name, [us]() -> Status {
                    std::this_thread::sleep_for(std::chrono::microseconds(us));
                    return {};
                  }};
  };
  test::Others nobody;  // sleepers that wake up late on a busy machine are not what this is about
  RaceOptions o;
  o.interference = &nobody;
  const auto sheet = race({sleeper("eager", 3000), sleeper("fast", 1500)}, 0, o);
  ASSERT_TRUE(sheet.ok());
  EXPECT_EQ(sheet->winner, 1u);
  EXPECT_GT(sheet->rows[1].gain, 1.5);
  const Result<double> ns = time_call(sleeper("one", 2000), o);
  ASSERT_TRUE(ns.ok());
  EXPECT_GT(*ns, 2e6);
}

}  // namespace
}  // namespace keirin
