// SPDX-License-Identifier: Apache-2.0
//
// Ranges of sizes that one process leaves to the next: who finds them decides nothing again and answers as the first one did; under other
// options or variables they are not found, and what was closed stays closed.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "core/api/kept_ranges.h"
#include "core/api/session.h"
#include "core/base/request.h"
#include "core/cache/bad_records.h"
#include "core/cache/cache.h"
#include "tests/support/others.h"
#include "tests/support/temp_folder.h"

namespace keirin {
namespace {

using namespace std::chrono_literals;
using Tensors = std::vector<TensorRef>;

constexpr auto kLong = 300s;
test::Others nobody;

KeptRanges some_ranges() {
  KeptRanges out;
  out.box = {{1, 2}, {8, 16}};
  out.pieces = {{2, 40, "cpu/all"}, {41, 128, "eager"}};
  out.checks = {{{1, 2}, "cpu/all", false, {}}, {{8, 16}, "eager", false, {}}};
  out.closed = {{"replay", "it was \"wrong\""}};
  return out;
}

TEST(KeptRangesText, IsReadAsItWasWritten) {
  const std::string text = ranges_text(some_ranges());
  const auto read = parse_ranges(text);
  ASSERT_TRUE(read.ok()) << read.status().text();
  EXPECT_EQ(ranges_text(*read), text);
  EXPECT_EQ(read->pieces[1].choice, "eager");
  EXPECT_EQ(read->closed.at("replay"), "it was \"wrong\"");
  EXPECT_EQ(read->checks[1].sizes, (Sizes{8, 16}));
}

TEST(KeptRangesText, OfAnotherShapeIsRefused) {
  const std::string text = ranges_text(some_ranges());
  for (const std::string& bad :
       {std::string(), std::string("[]"), text.substr(0, text.size() / 2), std::string(R"({"schema":"keirin/ranges/1"})")})
    EXPECT_EQ(parse_ranges(bad).status().code(), Code::k_corrupt) << bad;
  const auto refused = [](auto&& change) {
    KeptRanges ranges = some_ranges();
    change(ranges);
    return parse_ranges(ranges_text(ranges)).status().code() == Code::k_corrupt;
  };
  EXPECT_TRUE(refused([](KeptRanges& r) { r.box.most.pop_back(); }));
  EXPECT_TRUE(refused([](KeptRanges& r) { r.box.most[0] = 0; }));
  EXPECT_TRUE(refused([](KeptRanges& r) { r.pieces.clear(); }));
  EXPECT_TRUE(refused([](KeptRanges& r) { r.pieces[1].least = 40; }));
  EXPECT_TRUE(refused([](KeptRanges& r) { r.pieces[1].most = 40; }));
  EXPECT_TRUE(refused([](KeptRanges& r) { r.pieces.resize(kMostPieces + 1, r.pieces[1]); }));
}

TEST(KeptRangesText, WhatWasClosedIsEagersForWhoTakesItOver) {
  KeptRanges known = some_ranges();
  known.closed = {{"cpu/all", "it answered wrong"}};
  SizeRanges ranges;
  ranges.set(known);
  ASSERT_NE(ranges.find({1, 2}), nullptr);
  EXPECT_EQ(ranges.find({1, 2})->piece.choice, "eager");
  EXPECT_TRUE(ranges.is_closed("cpu/all"));
  EXPECT_EQ(ranges.report({"a", "b"}).ranges[0].closed, "it answered wrong");
  EXPECT_EQ(ranges_text(ranges.kept()), ranges_text(known)) << "and is handed on as it was found";
}

class KeptRangesTest : public testing::Test {
 protected:
  KeptRangesTest() {
    options_.cache_dir = folder_.path() + "/cache";
    options_.compile = When::kBackground;
    options_.race_seconds = 0.2;
    options_.memory_limit = 10;
    options_.threads = 1;
    options_.interference = &nobody;
    options_.on_event = [this](const Event& event) {
      decisions_ += event.kind == Event::Kind::kProgress;
      compiles_ += event.kind == Event::Kind::kProgress && event.text == "compile";
      taken_from_others_ += event.text.find("found with other weights, checked at two sizes") != std::string::npos;
    };
  }

  struct Process {
    std::unique_ptr<Runtime> runtime;
    std::unique_ptr<Session> session;

    Tensors inputs(const Sizes& sizes) const { return *session->example_inputs(1, sizes); }
    RangesReport ranges() const {
      const std::vector<ModelReport> reports = session->reports();
      return reports.empty() ? RangesReport() : reports.back().ranges;
    }
    std::string all() const {
      std::string text;
      for (const ModelReport& report : session->reports()) text += explain_text(report);
      return text;
    }
  };

  static std::unique_ptr<Session> open_session(Runtime& runtime, const Options& options,
                                               const std::string& path = std::string(KEIRIN_SOURCE_DIR) +
                                                                         "/tests/data/import/ranges_encoder.pt2") {
    auto session = Session::open(runtime, path, options);
    EXPECT_TRUE(session.ok()) << session.status().text();
    return session.ok() ? std::move(*session) : nullptr;
  }
  template <class... Path>
  static Process open(const Options& options, const Path&... path) {
    Process out;
    auto runtime = Runtime::open(options);
    EXPECT_TRUE(runtime.ok()) << runtime.status().text();
    out.runtime = std::move(*runtime);
    out.session = open_session(*out.runtime, options, path...);
    return out;
  }

  static void meet(const Process& process, const Sizes& sizes) {
    const Tensors inputs = process.inputs(sizes);
    for (int tries = 0; tries < 1000 && !process.session->is_decided(inputs); ++tries) {
      ASSERT_TRUE(process.session->call(inputs).ok());
      ASSERT_TRUE(process.session->settle(kLong));
    }
    ASSERT_TRUE(process.session->is_decided(inputs));
  }

  RangesReport first_process() {
    const Process first = open(options_);
    meet(first, {2, 6});
    meet(first, {3, 9});
    EXPECT_GT(decisions_, 0u);
    return first.ranges();
  }

  static void expect_same(const RangesReport& a, const RangesReport& b) {
    ASSERT_EQ(a.ranges.size(), b.ranges.size());
    for (size_t i = 0; i < a.ranges.size(); ++i) {
      EXPECT_EQ(a.ranges[i].least, b.ranges[i].least);
      EXPECT_EQ(a.ranges[i].most, b.ranges[i].most);
      EXPECT_EQ(a.ranges[i].choice, b.ranges[i].choice);
    }
    ASSERT_EQ(a.sizes.size(), b.sizes.size());
    for (size_t k = 0; k < a.sizes.size(); ++k)
      EXPECT_EQ(std::pair(a.sizes[k].min, a.sizes[k].max), std::pair(b.sizes[k].min, b.sizes[k].max));
    EXPECT_EQ(a.checked.size(), b.checked.size());
  }

  size_t kept() const {
    CacheOptions options;
    options.dir = options_.cache_dir;
    size_t count = 0;
    for (const EntryInfo& entry : Cache(options).list()) count += entry.kind == EntryKind::kRanges;
    return count;
  }

  static std::set<std::string> checked(const Process& process) {
    std::set<std::string> out;
    for (const CheckedReport& check : process.ranges().checked) out.insert(check.sizes);
    return out;
  }

  // As if the process had found these pieces.
  static void find_instead(Cache& cache, const std::vector<SizePiece>& pieces) {
    for (const EntryInfo& entry : cache.list()) {
      if (entry.kind != EntryKind::kRanges) continue;
      Result<KeptRanges> ranges = parse_ranges(cache.body(entry).value_or(""));
      ASSERT_TRUE(ranges.ok()) << ranges.status().text();
      ranges->pieces = pieces;
      cache.adopt({entry.kind, entry.key, "", ranges_text(*ranges), true});
    }
  }

  const test::TempFolder folder_;
  Options options_;
  std::atomic<uint64_t> decisions_{0}, compiles_{0}, taken_from_others_{0};
};

TEST_F(KeptRangesTest, AreTakenOverAtTheFirstCallWithoutADecision) {
  const RangesReport known = first_process();
  ASSERT_FALSE(known.ranges.empty());
  ASSERT_EQ(kept(), 2u);  // for these weights, and for others to begin with
  decisions_ = 0;
  const uint64_t compiled = compiles_on_requests();
  const Process second = open(options_);
  const Sizes sizes = {4, 7};  // met by nobody
  const Tensors inputs = second.inputs(sizes);
  const auto eager = second.session->call_eager(inputs), before = second.session->call(inputs);
  ASSERT_TRUE(eager.ok() && before.ok());
  ASSERT_TRUE(second.session->settle(kLong));
  EXPECT_TRUE(second.session->is_decided(inputs)) << second.all();
  expect_same(second.ranges(), known);
  EXPECT_NE(second.all().find("ranges of sizes are those of an earlier process"), std::string::npos) << second.all();
  EXPECT_EQ(second.session->reports().size(), 1u);
  meet(second, {5, 11});
  meet(second, {2, 6});
  EXPECT_EQ(decisions_, 0u) << "something was decided again";
  EXPECT_EQ(compiles_on_requests(), compiled);
  const uint64_t by_plan = second.session->activity().by_plan;
  const auto after = second.session->call(inputs);
  ASSERT_TRUE(after.ok());
  const auto *x = static_cast<const float*>((*after)[0]->data()), *y = static_cast<const float*>((*eager)[0]->data());
  for (int64_t i = 0; i < 8; ++i) EXPECT_NEAR(x[i], y[i], 1e-4);
  const int64_t volume = volume_of(sizes);
  for (const RangeReport& range : known.ranges) {
    const bool holds = volume >= range.least && volume <= range.most;
    if (holds) {
      EXPECT_EQ(second.session->activity().by_plan, by_plan + (range.choice != "eager"));
    }
  }
}

// Nobody has called yet: the sizes that the first process met have their plans all the same.
TEST_F(KeptRangesTest, ThePlansOfTheFirstSizesAreThereBeforeTheFirstCall) {
  const RangesReport known = first_process();
  ASSERT_FALSE(known.ranges.empty());
  decisions_ = 0;
  const auto start = std::chrono::steady_clock::now();
  const Process second = open(options_);
  ASSERT_TRUE(second.session->settle(kLong));
  std::printf("opened, and plans there: %.1f ms\n",
              std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  for (const Sizes& sizes : {Sizes{2, 6}, Sizes{3, 9}}) {
    const Tensors inputs = second.inputs(sizes);
    ASSERT_TRUE(second.session->is_decided(inputs));
    const auto before = second.session->activity();
    const auto first = second.session->call(inputs), eager = second.session->call_eager(inputs);
    ASSERT_TRUE(first.ok() && eager.ok());
    EXPECT_EQ(second.session->activity().by_plan + second.session->activity().eager_chosen, before.by_plan + before.eager_chosen + 1);
    EXPECT_EQ(second.session->activity().eager_undecided, 0u);
    const auto *x = static_cast<const float*>((*first)[0]->data()), *y = static_cast<const float*>((*eager)[0]->data());
    for (int64_t i = 0; i < 8; ++i) EXPECT_NEAR(x[i], y[i], 1e-4);
  }
  EXPECT_EQ(decisions_, 0u);
  expect_same(second.ranges(), known);
}

TEST_F(KeptRangesTest, AreNotTakenOverUnderOtherOptionsOrVariables) {
  ASSERT_FALSE(first_process().ranges.empty());
  const auto finds = [](const Process& process) {
    EXPECT_TRUE(process.session->call(process.inputs({4, 7})).ok());
    EXPECT_TRUE(process.session->settle(kLong));
    return !process.ranges().ranges.empty();
  };
  EXPECT_TRUE(finds(open(options_)));
  Options strict = options_;
  strict.numerics = Numerics::kStrict;
  EXPECT_FALSE(finds(open(strict)));
  Options none = options_;
  none.ranges = false;
  EXPECT_FALSE(finds(open(none)));
  ::setenv("MKL_CBWR", "COMPATIBLE", 1);
  EXPECT_FALSE(finds(open(options_)));
  ::unsetenv("MKL_CBWR");
  EXPECT_TRUE(finds(open(options_))) << "and are still there";
  const std::string copy = folder_.path() + "/ranges_encoder.pt2";
  std::filesystem::copy_file(std::string(KEIRIN_SOURCE_DIR) + "/tests/data/import/ranges_encoder.pt2", copy);
  EXPECT_TRUE(finds(open(options_, copy))) << "a file is what it holds, wherever it lies";
}

// A model that is replaced again and again is closed in the midst of its checks each time. They are gone on with, at the sizes that they
// began with: at those that the next session meets first, they would begin anew.
TEST_F(KeptRangesTest, WhatAClosedSessionBeganIsGoneOnWith) {
  options_.race_seconds = 0.02;
  Process process = open(options_);
  meet(process, {2, 6});
  compiles_ = 0;
  ASSERT_TRUE(process.session->call(process.inputs({3, 9})).ok());
  const auto start = std::chrono::steady_clock::now();
  while (compiles_ < 2 && std::chrono::steady_clock::now() - start < kLong) std::this_thread::sleep_for(1ms);
  process.session.reset();
  ASSERT_EQ(kept(), 0u) << "it came to an end";
  compiles_ = 0;
  process.session = open_session(*process.runtime, options_);
  meet(process, {4, 7});
  meet(process, {5, 11});
  const std::set<std::string> sizes = checked(process);
  EXPECT_TRUE(sizes.contains("2,6") && sizes.contains("3,9")) << process.all();
  EXPECT_FALSE(sizes.contains("4,7") || sizes.contains("5,11")) << process.all();
  EXPECT_LE(compiles_, sizes.size() - 2 + 1) << "the two were decided, and 4,7 is a decision of its own";
}

// Which plan is fastest where is the same for all weights. Where two sizes are answered as the ranges of other weights say, nothing else is
// checked; where they are not, all is.
TEST_F(KeptRangesTest, OfOtherWeightsHoldWhereTwoSizesAgree) {
  options_.race_seconds = 0.02;
  Process process = open(options_);
  meet(process, {2, 6});
  meet(process, {3, 9});
  const size_t all = checked(process).size();
  ASSERT_GT(all, 2u) << process.all();
  const auto replaced = [&](float by) {
    std::vector<std::pair<std::string, TensorRef>> weights;
    for (const auto& [name, tensor] : process.session->weights()) {
      if (tensor->dtype() != DType::k_f32) continue;
      const TensorRef copy = *process.runtime->tensors().clone(tensor);
      for (int64_t i = 0; i < copy->storage_bytes() / 4; ++i) static_cast<float*>(copy->data())[i] *= by;
      weights.emplace_back(name, copy);
    }
    auto session = process.session->with_weights(weights);
    EXPECT_TRUE(session.ok()) << session.status().text();
    return std::move(*session);
  };
  Cache& cache = *process.runtime->cache();
  find_instead(cache, {{1, 4096, "eager"}});  // which whatever won agrees to
  const std::unique_ptr<Session> first = std::exchange(process.session, replaced(2));
  taken_from_others_ = 0;
  meet(process, {2, 6});
  meet(process, {3, 9});
  EXPECT_EQ(taken_from_others_, 1u) << process.all();
  EXPECT_EQ(checked(process).size(), 2u) << process.all();
  ASSERT_EQ(process.ranges().ranges.back().most, 4096);
  // Nobody won by this name.
  find_instead(cache, {{1, 4096, "cpu/anchors_only-r99"}});
  process.session = replaced(2);
  meet(process, {2, 6});
  meet(process, {3, 9});
  EXPECT_EQ(taken_from_others_, 1u) << process.all();
  EXPECT_EQ(checked(process).size(), all) << process.all();
}

TEST_F(KeptRangesTest, AreForgottenWhereFaultsAreForgiven) {
  ASSERT_FALSE(first_process().ranges.empty());
  ASSERT_EQ(kept(), 2u);  // for these weights, and for others to begin with
  CacheOptions options;
  options.dir = options_.cache_dir;
  Cache cache(options);
  EXPECT_EQ(forgive(cache, ""), 0u);
  EXPECT_EQ(kept(), 0u);
}

}  // namespace
}  // namespace keirin
