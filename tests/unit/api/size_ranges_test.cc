// SPDX-License-Identifier: Apache-2.0
//
// Which sizes are in a range, and by which candidate: from what decisions at a few sizes say, without any.
#include "core/api/size_ranges.h"

#include <gtest/gtest.h>

#include "core/api/plan_table.h"

namespace keirin {
namespace {

CandidateReport plan(const std::string& name, double ms, const std::string& reason = "faster") {
  CandidateReport c;
  c.name = name;
  c.plugin = "cpu";
  c.reason = reason;
  c.verified = reason != "wrong_result";
  c.milliseconds = ms;
  return c;
}

CheckedSizes at(int64_t size, std::vector<CandidateReport> candidates, bool disturbed = false) {
  return {{size}, "", disturbed, std::move(candidates)};
}

std::string text(const std::vector<SizePiece>& pieces) {
  std::string out;
  for (const SizePiece& piece : pieces)
    out += (out.empty() ? "" : " ") + std::to_string(piece.least) + ".." + std::to_string(piece.most) + ":" + piece.choice;
  return out;
}

TEST(Divide, OneWinnerIsOnePiece) {
  EXPECT_EQ(text(divide({at(64, {plan("cpu/all", 3)}), at(1, {plan("cpu/all", 1)}), at(8, {plan("cpu/all", 2)})})), "1..64:cpu/all");
}

TEST(Divide, CutsBetweenSizesOfDifferentWinners) {
  EXPECT_EQ(text(divide({at(1, {plan("cpu/all", 1), plan("cpu/all/1", 2)}), at(16, {plan("cpu/all", 4), plan("cpu/all/1", 2)}),
                         at(64, {plan("cpu/all/1", 3)})})),
            "1..4:cpu/all 5..64:cpu/all/1");
}

TEST(Divide, WhatIsNearlyAsFastSparesACut) {
  EXPECT_EQ(text(divide({at(1, {plan("cpu/all", 1), plan("cpu/all/1", 1.04)}), at(16, {plan("cpu/all", 3), plan("cpu/all/1", 2)})})),
            "1..16:cpu/all/1");
}

TEST(Divide, EagerAnswersWhereNothingIsFaster) {
  EXPECT_EQ(text(divide({at(1, {plan("cpu/all", 1, "slower")}), at(9, {plan("cpu/all", 2)})})), "1..3:eager 4..9:cpu/all");
}

// What is wrong at one size may be wrong between the others too, where nobody looked.
TEST(Divide, WhatIsWrongSomewhereAnswersNowhere) {
  for (const bool repaired : {false, true}) {
    CandidateReport bad = plan("cpu/all", 1, repaired ? "faster" : "wrong_result");
    bad.repaired = repaired;
    const std::vector<CheckedSizes> checks = {at(1, {plan("cpu/all", 1)}), at(8, {bad}),
                                              at(64, {plan("cpu/all", 9), plan("cpu/all/1", 10)})};
    EXPECT_EQ(text(divide(checks)), "1..22:eager 23..64:cpu/all/1") << repaired;
  }
}

TEST(Divide, ARecordingAnswersNoOtherSize) {
  EXPECT_EQ(text(divide({at(1, {plan("cuda/all+launch_replay", 1), plan("cuda/all", 2)}), at(4, {plan("cuda/all", 2)})})), "1..4:cuda/all");
  EXPECT_EQ(text(divide({at(1, {plan("eager+launch_replay", 1)})})), "1..1:eager");
}

// Where the race compared with a recording, whoever lost to that may still be far ahead of eager, which is what a size between gets else.
TEST(Divide, WhatLostToARecordingIsComparedWithEager) {
  const auto beside = [](double ms, const std::string& reason, const std::string& eagers) {
    CandidateReport eager = plan("eager", 4, eagers);
    eager.plugin.clear();
    return text(divide({at(1, {eager, plan("eager+launch_replay", 0.8, "baseline"), plan("cuda/all", ms, reason)})}));
  };
  for (const char* reason : {"slower", "inside_noise", "not_raced"}) {
    EXPECT_EQ(beside(1, reason, "inside_noise"), "1..1:cuda/all") << reason;
    EXPECT_EQ(beside(3.9, reason, "inside_noise"), "1..1:eager") << reason << ": too near without a race";
    EXPECT_EQ(beside(1, reason, "baseline"), "1..1:eager") << reason << ": the race compared with eager";
    EXPECT_EQ(beside(0, reason, "inside_noise"), "1..1:eager") << reason << ": not timed";
  }
  EXPECT_EQ(beside(1, "wrong_result", "inside_noise"), "1..1:eager");
  EXPECT_EQ(beside(1, "memory", "inside_noise"), "1..1:eager");
}

TEST(Divide, ADisturbedRaceContradictsNothingAndShowsNothing) {
  const auto disturbed = [](int64_t size) { return at(size, {plan("cpu/all", 0, "disturbed")}, true); };
  EXPECT_EQ(text(divide({at(1, {plan("cpu/all", 1)}), disturbed(8), at(64, {plan("cpu/all", 1)})})), "1..64:cpu/all");
  EXPECT_EQ(text(divide({disturbed(1), disturbed(64)})), "1..64:eager");
}

TEST(Divide, FourPiecesAtMost) {
  std::vector<CheckedSizes> checks;
  for (int i = 0; i < 9; ++i) checks.push_back(at(int64_t{1} << (2 * i), {plan(i % 2 ? "cpu/all" : "cpu/all/1", 1)}));
  const std::vector<SizePiece> pieces = divide(checks);
  EXPECT_LE(pieces.size(), kMostPieces);
  EXPECT_EQ(pieces.front().least, 1);
  EXPECT_EQ(pieces.back().most, int64_t{1} << 16);
  for (size_t i = 1; i < pieces.size(); ++i) {
    EXPECT_EQ(pieces[i].least, pieces[i - 1].most + 1);
    EXPECT_NE(pieces[i].choice, pieces[i - 1].choice);
  }
}

// Two that are far ahead of eager, each a tenth faster than the other here and there.
TEST(Divide, NoneIsEagersWhereTwoTakeTurns) {
  std::vector<CheckedSizes> checks;
  for (int i = 0; i < 9; ++i)
    checks.push_back(at(int64_t{1} << (2 * i), {plan("cpu/all", i % 2 ? 1 : 1.1), plan("cpu/all/1", i % 2 ? 1.1 : 1)}));
  EXPECT_EQ(text(divide(checks)), "1..65536:cpu/all/1");
}

TEST(Divide, EqualVolumesAreNotToldApart) {
  const std::vector<CheckedSizes> checks = {{{2, 8}, "", false, {plan("cpu/all", 1)}}, {{8, 2}, "", false, {plan("cpu/all/1", 1)}}};
  EXPECT_EQ(text(divide(checks)), "16..16:eager");
}

TEST(SizeBetween, IsInTheMiddleOfTheWidestCut) {
  const SizeBox box{{1}, {4096}};
  const auto small = [](int64_t size) { return at(size, {plan("cpu/all", 1)}); };
  const auto large = [](int64_t size) { return at(size, {plan("cpu/all", 1, "slower")}); };
  EXPECT_EQ(size_between(box, {small(1), small(4096)}), std::nullopt) << "one piece";
  EXPECT_EQ(size_between(box, {small(1), large(7), large(4096)}), std::nullopt) << "narrow enough";
  EXPECT_EQ(size_between(box, {small(1), small(4), large(400), large(4096)}), Sizes{40});
  EXPECT_EQ(size_between(box, {small(1), small(4), large(400), small(40), large(4096)}), Sizes{126});
  EXPECT_EQ(size_between(box, {small(1), small(4), large(400), small(40), large(126), large(4096)}), std::nullopt);
  EXPECT_EQ(size_between({{1, 2}, {8, 256}}, {{{1, 4}, "", false, {plan("cpu/all", 1)}}, {{2, 253}, "", false, {}}}), (Sizes{1, 32}));
}

TEST(SizesToCheck, AreTheEndsTheMetAndThreeDrawnOnes) {
  const SizeBox box{{1, 2}, {64, 512}};
  const std::vector<Sizes> sizes = sizes_to_check(box, {{8, 16}, {3, 7}});
  EXPECT_EQ(sizes.size(), 7u);
  for (const Sizes& each : sizes) EXPECT_TRUE(box.holds(each)) << each[0] << "," << each[1];
  for (const Sizes& wanted : {Sizes{8, 16}, Sizes{3, 7}, Sizes{1, 2}, Sizes{64, 512}})
    EXPECT_EQ(std::count(sizes.begin(), sizes.end(), wanted), 1);
  EXPECT_EQ(sizes_to_check(box, {{8, 16}, {3, 7}}), sizes) << "the next process finds the decisions of this one";
  EXPECT_EQ(sizes_to_check({{4}, {4}}, {{4}}).size(), 1u);
}

TEST(CutToGrowth, KeepsWhatWasMetAndHalvesTheFurthest) {
  const SizeBox box = cut_to_growth({{1, 2}, {256, 512}}, {{8, 16}, {2, 100}}, 16);
  EXPECT_LE(volume_of(box.most), 16 * 200);
  EXPECT_GE(box.most[0], 8);
  EXPECT_GE(box.most[1], 100);
  EXPECT_EQ(cut_to_growth({{1}, {256}}, {{8}}, 0).most, (Sizes{8}));
  EXPECT_EQ(cut_to_growth({{1}, {256}}, {{8}}, 1e9).most, (Sizes{256}));
  EXPECT_EQ(volume_of({int64_t{1} << 40, int64_t{1} << 40}), INT64_MAX);
}

TEST(SizeRanges, HoldTheirBoxAndCloseForGood) {
  SizeRanges ranges;
  EXPECT_EQ(ranges.find({4}), nullptr);
  ranges.set({{1}, {64}}, {{1, 8, "cpu/all"}, {9, 32, "cpu/all/1"}, {33, 64, "cpu/all"}}, {});
  EXPECT_EQ(ranges.find({65}), nullptr);
  EXPECT_EQ(ranges.find({4, 4}), nullptr);
  const auto small = ranges.find({8}), large = ranges.find({9});
  ASSERT_TRUE(small && large);
  EXPECT_EQ(small->piece.choice, "cpu/all");
  EXPECT_EQ(large->piece.choice, "cpu/all/1");
  EXPECT_NE(small->record, large->record);
  EXPECT_FALSE(ranges.is_closed("cpu/all"));
  EXPECT_TRUE(ranges.close("cpu/all", "it was wrong"));
  EXPECT_FALSE(ranges.close("cpu/all", "again"));
  EXPECT_TRUE(ranges.is_closed("cpu/all"));
  EXPECT_EQ(ranges.find({8})->piece.choice, "eager");
  EXPECT_EQ(ranges.find({64})->piece.choice, "eager") << "what was wrong at one size is not asked at another";
  EXPECT_EQ(ranges.find({9}), large);
  ranges.set({{1}, {64}}, {{1, 64, "cpu/all"}}, {});
  EXPECT_EQ(ranges.find({8})->piece.choice, "eager") << "nor after another check";
  const RangesReport report = ranges.report({"x[0]"});
  ASSERT_EQ(report.ranges.size(), 1u);
  EXPECT_EQ(report.ranges[0].closed, "it was wrong");
  EXPECT_EQ(report.sizes[0].name, "x[0]");
}

// Making one takes 30 ms, its call 2 ms instead of 5 at small sizes, and 10 instead of 20 at large ones.
TEST(SizeRanges, APlanPaysAfterAsManyCallsAsItsMakingTakes) {
  SizeRanges ranges;
  ranges.set({{1}, {900}}, {{1, 5, "eager"}, {6, 900, "cpu/all"}},
             {at(8, {plan("eager", 5), plan("cpu/all", 2)}), at(400, {plan("eager", 20), plan("cpu/all", 10)}),
              at(500, {plan("eager", 20), plan("cpu/all", 0, "disturbed")})});
  EXPECT_EQ(ranges.calls_until_paid({10}), 1u) << "nobody knows yet what making one takes";
  ranges.entered(0, {{"passes", 0.010}, {"plan", 0.010}});
  ranges.entered(0, {{"passes", 0.010}, {"plan", 0.020}});
  ranges.entered(0, {{"passes", 0.010}, {"plan", 0.680}});  // some library began in it
  EXPECT_EQ(ranges.calls_until_paid({10}), 10u);
  EXPECT_EQ(ranges.calls_until_paid({204}), 5u) << "half way from 8 to 400 it saves 6.5 ms";
  EXPECT_EQ(ranges.calls_until_paid({400}), 3u);
  EXPECT_EQ(ranges.calls_until_paid({800}), 3u) << "at 500 nothing was timed";
  EXPECT_EQ(ranges.calls_until_paid({3}), 1u) << "eager's sizes take no plan";
  EXPECT_EQ(ranges.calls_until_paid({5000}), 1u) << "in no range";
  for (int64_t size = 500; size < 508; ++size) ranges.tried_at_once({size}, "code");
  EXPECT_EQ(ranges.calls_until_paid({10}), 1u) << "what making one of what is there takes is worth some failures";
  ranges.tried_at_once({508}, "code");
  EXPECT_EQ(ranges.calls_until_paid({10}), 10u) << "but not any number";
}

// The same, with 6 ms for one that is made of what is there.
TEST(SizeRanges, ACallWaitsForAPlanThatTakesLessThanItSaves) {
  SizeRanges ranges;
  ranges.set({{1}, {900}}, {{1, 5, "eager"}, {6, 900, "cpu/all"}},
             {at(8, {plan("eager", 5), plan("cpu/all", 2)}), at(400, {plan("eager", 20), plan("cpu/all", 10)})});
  ranges.entered(0, {{"plan", 0.030}});
  ranges.tried_at_once({500}, {});
  EXPECT_FALSE(ranges.pays_at_once({204})) << "nobody knows";
  EXPECT_EQ(ranges.calls_until_paid({10}), 1u) << "what making one takes now is to be found out";
  ranges.entered(0, {{"plan", 0.006}}, true);
  EXPECT_EQ(ranges.calls_until_paid({10}), 2u);
  EXPECT_FALSE(ranges.pays_at_once({10})) << "6 ms for 3";
  EXPECT_TRUE(ranges.pays_at_once({204})) << "6 ms for 6.5";
  EXPECT_FALSE(ranges.pays_at_once({3})) << "eager's";
  for (const auto& [size, ms] : std::vector<std::pair<int64_t, double>>{{9, 10.0}, {11, 5.1}, {13, 40.0}, {300, 16}})
    ranges.eager_began({size}, ms);  // 4.9 ms beyond the 5.1 of any call, in the median, of which 300 is not one of the nearest
  EXPECT_TRUE(ranges.pays_at_once({10})) << "eager's first call takes longer than its others";
  EXPECT_FALSE(ranges.pays_at_once({11})) << "which was made at this size";
  ranges.tried_at_once({40}, {});
  ranges.tried_at_once({10}, "code");
  EXPECT_FALSE(ranges.pays_at_once({10}));
  EXPECT_FALSE(ranges.pays_at_once({12})) << "nearer to 10, where it did not suffice, than to 40";
  EXPECT_TRUE(ranges.pays_at_once({30}));
  ranges.tried_at_once({10}, {});
  EXPECT_TRUE(ranges.pays_at_once({12})) << "then it did";
  EXPECT_EQ(ranges.calls_that_last({10}, 0.2), 98u) << "of 2.04 ms each";
  EXPECT_EQ(ranges.calls_that_last({5000}, 0.2), 0u);
  ranges.tried_at_once({100}, "code");
  EXPECT_EQ(ranges.calls_until_paid({100}), 7u) << "where what is there does not suffice, a plan takes 30 ms as ever, to save 4.4";
  EXPECT_TRUE(ranges.have_missed_enough({100})) << "others may lack the same";
  int calls = 1;
  while (!ranges.have_missed_enough({100}) && calls < 1000) ++calls;
  EXPECT_EQ(calls, 9) << "30 ms are lost by 3.5 each: 4.6 that are saved and 4.9 of eager's first calls, less the 6 of a plan";
  EXPECT_FALSE(ranges.have_missed_enough({100})) << "then it begins anew";
  EXPECT_FALSE(ranges.have_missed_enough({30})) << "where it suffices nothing is missed";
  ranges.tried_at_once({100}, "another structure");
  EXPECT_TRUE(ranges.have_missed_enough({100})) << "something else";
  EXPECT_FALSE(ranges.have_missed_enough({100}));
  using Left = std::vector<std::pair<std::string, uint64_t>>;
  EXPECT_EQ(ranges.report({"n"}).left_to_eager, (Left{{"it is not known yet how long making a plan takes", 1},
                                                      {"making a plan takes longer than it saves a call", 2},
                                                      {"what was there did not suffice at the nearest sizes", 2}}));
  const std::vector<CheckedSizes> square = {{{4, 4}, "", false, {plan("eager", 5), plan("cpu/all", 2)}}};
  ranges.set({{1, 1}, {10, 10}}, {{1, 100, "cpu/all"}}, square);
  EXPECT_EQ(ranges.calls_until_paid({2, 10}), 2u);
  ranges.tried_at_once({3, 3}, "another structure");
  ranges.tried_at_once({3, 9}, {});
  EXPECT_TRUE(ranges.pays_at_once({3, 4})) << "equal sizes say nothing of others";
  EXPECT_FALSE(ranges.pays_at_once({9, 9}));
  EXPECT_EQ(ranges.calls_until_paid({1, 20}), 1u) << "as many elements, but not inside";
}

// From then on plans are made in less time. What it took before counts until one was made, soon and beside calls.
TEST(SizeRanges, WhatPlansTookBeforeTheirGraphsWereLearnedCountsUntilOneIsMade) {
  SizeRanges ranges;
  ranges.set({{1}, {900}}, {{1, 900, "cpu/all"}},
             {at(8, {plan("eager", 5), plan("cpu/all", 2)}), at(400, {plan("eager", 20), plan("cpu/all", 10)})});
  ranges.tried_at_once({500}, {});
  for (int i = 0; i < 5; ++i) ranges.entered(0, {{"plan", 0.006}}, true);
  ranges.learned("");
  EXPECT_TRUE(ranges.pays_at_once({204})) << "6 ms for 6.5, as before";
  EXPECT_FALSE(ranges.pays_at_once({10}));
  EXPECT_EQ(ranges.calls_until_paid({10}), 1u) << "what making one takes now is to be found out";
  ranges.entered(0, {{"plan", 0.001}}, true);
  EXPECT_TRUE(ranges.pays_at_once({10})) << "1 ms for 3: those before say nothing any more";
  EXPECT_EQ(ranges.report({"n"}).at_once_ms, 1);
}

struct Keyed {
  uint64_t number;
  int name;
  uint64_t key() const { return number; }
};

TEST(PlanTable, FindsByKeyAndByWhatFits) {
  PlanTable<Keyed> table;
  table.change([](auto& list) {
    for (int i = 0; i < 100; ++i) list.push_back(std::make_shared<const Keyed>(Keyed{static_cast<uint64_t>(i % 10), i}));
  });
  const auto now = table.now();
  const auto* found = now->find(7, [](const Keyed& each) { return each.name > 50; });
  ASSERT_NE(found, nullptr);
  EXPECT_EQ((*found)->name, 57);
  EXPECT_EQ(now->find(10, [](const Keyed&) { return true; }), nullptr);
  EXPECT_EQ(now->find(7, [](const Keyed&) { return false; }), nullptr);
}

}  // namespace
}  // namespace keirin
