// SPDX-License-Identifier: Apache-2.0
//
// Sizes that change beside a service: the second size brings about a range, and what lies in it is answered as eager answers it, by plans
// that no request compiled and nothing was decided for.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include <unistd.h>

#include "core/api/session.h"
#include "core/base/request.h"
#include "tests/support/others.h"
#include "tests/support/shared_runtime.h"

namespace keirin {
namespace {

using namespace std::chrono_literals;
using Tensors = std::vector<TensorRef>;
using Sizes = std::vector<int64_t>;

constexpr auto kLong = 300s;
test::Others nobody;

// On one thread: a busy machine's second one would be waited for at each end of a loop.
Runtime& runtime() { return test::shared_runtime(1); }

// With a choice that no race makes, so that the tests ask what they ask on any machine.
Options options_of(const std::string& candidate = "cpu/all") {
  Options options;
  options.compile = When::kBackground;
  options.interference = &nobody;
  options.only_candidate = candidate;
  options.threads = 1;
  return options;
}

std::unique_ptr<Session> open(const std::string& name, const Options& options) {
  auto session = Session::open(runtime(), std::string(KEIRIN_SOURCE_DIR) + "/tests/data/import/" + name + ".pt2", options);
  EXPECT_TRUE(session.ok()) << session.status().text();
  return session.ok() ? std::move(*session) : nullptr;
}

Tensors inputs_of(Session& session, const Sizes& sizes) {
  auto inputs = session.example_inputs(1, sizes);
  EXPECT_TRUE(inputs.ok()) << inputs.status().text();
  return inputs.ok() ? *inputs : Tensors();
}

// The largest difference of f32 outputs as a share of the output's largest element, infinity where anything else differs: sums over a
// node's neighbours grow with the graph, and processors round them in orders of their own.
double difference(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return INFINITY;
  double worst = 0;
  for (size_t k = 0; k < a.size(); ++k) {
    if (spec_text(spec_of(*a[k])) != spec_text(spec_of(*b[k]))) return INFINITY;
    const auto *x = static_cast<const float*>(a[k]->data()), *y = static_cast<const float*>(b[k]->data());
    int64_t n = 1;
    for (int64_t d = 0; d < a[k]->rank(); ++d) n *= a[k]->sizes()[d];
    double off = 0, largest = 0;
    for (int64_t i = 0; i < n; ++i) {
      off = std::max(off, std::fabs(static_cast<double>(x[i]) - y[i]));
      largest = std::max(largest, std::fabs(static_cast<double>(y[i])));
    }
    worst = std::max(worst, off > 0 ? off / largest : 0);
  }
  return worst;
}

// Meets all of them; a call that found the thread's door shut asks again.
void meet(Session& session, const std::vector<Sizes>& all) {
  for (const Sizes& sizes : all) {
    const Tensors inputs = inputs_of(session, sizes);
    for (int tries = 0; tries < 1000 && !session.is_decided(inputs); ++tries) {
      ASSERT_TRUE(session.call(inputs).ok());
      ASSERT_TRUE(session.settle(kLong));
    }
    ASSERT_TRUE(session.is_decided(inputs));
  }
}

RangesReport ranges_of(const Session& session) {
  const std::vector<ModelReport> reports = session.reports();
  return reports.empty() ? RangesReport() : reports.back().ranges;
}

std::vector<Sizes> draw_within(const RangesReport& ranges, size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Sizes> out;
  while (out.size() < count) {
    Sizes sizes;
    int64_t volume = 1;
    for (const SizeReport& size : ranges.sizes) {
      sizes.push_back(size.min + static_cast<int64_t>(random() % static_cast<uint32_t>(size.max - size.min + 1)));
      volume *= sizes.back();
    }
    if (volume >= ranges.ranges.front().least && volume <= ranges.ranges.back().most) out.push_back(std::move(sizes));
  }
  return out;
}

struct Case {
  const char* model;
  Sizes first, second;
};
const Case kCases[] = {{"ranges_encoder", {2, 6}, {3, 9}}, {"ranges_convnet", {4}, {6}}, {"ranges_graph", {20, 60}, {24, 90}}};

TEST(Ranges, TwoHundredSizesOfEachModelAreAnsweredAsByEager) {
  for (const Case& each : kCases) {
    SCOPED_TRACE(each.model);
    const uint64_t compiled = compiles_on_requests();
    auto session = open(each.model, options_of());
    meet(*session, {each.first, each.second});
    const RangesReport known = ranges_of(*session);
    ASSERT_EQ(known.ranges.size(), 1u) << explain_text(session->reports().back());
    ASSERT_EQ(known.ranges[0].choice, "cpu/all") << explain_text(session->reports().back());
    EXPECT_GE(known.checked.size(), 5u);
    EXPECT_GE(known.learned, 1u) << "before a size between is met: its first call finds the graphs of its kind";
    EXPECT_GE(known.rehearsed, 20u) << explain_text(session->reports().back());
    const std::vector<Sizes> all = draw_within(known, 200, 7);
    for (const Sizes& sizes : all) ASSERT_TRUE(session->call(inputs_of(*session, sizes)).ok());
    ASSERT_TRUE(session->settle(kLong));
    meet(*session, all);
    const uint64_t before = session->activity().by_plan;
    double worst = 0;
    for (const Sizes& sizes : all) {
      const Tensors inputs = inputs_of(*session, sizes);
      const auto answer = session->call(inputs), eager = session->call_eager(inputs);
      ASSERT_TRUE(answer.ok() && eager.ok());
      worst = std::max(worst, difference(*answer, *eager));
    }
    EXPECT_LT(worst, 1e-5);
    EXPECT_EQ(session->activity().by_plan, before + all.size()) << "a plan answers every one of them";
    EXPECT_EQ(compiles_on_requests(), compiled);
    EXPECT_EQ(session->reports().size(), 1u) << "the first size is the one that was decided by itself";
    const RangesReport last = ranges_of(*session);
    EXPECT_GE(last.entered, std::set<Sizes>(all.begin(), all.end()).size() / 2);
    EXPECT_GE(last.at_once, last.entered * 9 / 10) << "few structures: all other sizes' plans are made of those that are there";
    EXPECT_GE(last.learned, 1u) << explain_text(session->reports().back());
    EXPECT_TRUE(last.not_learned.empty()) << last.not_learned.front();
    EXPECT_GE(last.rehearsed, 20u) << explain_text(session->reports().back());
  }
}

TEST(Ranges, ASizeBeyondThemIsDecidedByItself) {
  Options options = options_of();
  options.max_shapes = 2;
  auto session = open("ranges_encoder", options);
  meet(*session, {{1, 2}, {1, 3}});
  ASSERT_FALSE(ranges_of(*session).ranges.empty());
  const Tensors beyond = inputs_of(*session, {16, 48});
  ASSERT_TRUE(session->call(beyond).ok());
  ASSERT_TRUE(session->settle(kLong));
  EXPECT_TRUE(session->is_decided(beyond));
  EXPECT_EQ(session->reports().size(), 2u);
  const Tensors too_many = inputs_of(*session, {15, 48});
  ASSERT_TRUE(session->call(too_many).ok());
  ASSERT_TRUE(session->settle(kLong));
  EXPECT_FALSE(session->is_decided(too_many));
  EXPECT_NE(explain_text(session->reports().back()).find("max_shapes"), std::string::npos);
}

TEST(Ranges, AreNoneWhereTheOptionSaysSoOrOneSizeIsMet) {
  Options options = options_of();
  options.ranges = false;
  auto without = open("ranges_convnet", options);
  meet(*without, {{4}, {6}});
  EXPECT_TRUE(ranges_of(*without).ranges.empty());
  EXPECT_EQ(without->reports().size(), 2u);
  auto one = open("ranges_convnet", options_of());
  meet(*one, {{4}});
  EXPECT_TRUE(ranges_of(*one).ranges.empty());
}

// A plan of one row is not made of one of several, where eager's copy is the input itself.
TEST(Ranges, AnOutputThatIsTheInputAtOneSizeIsItThere) {
  auto session = open("ranges_turned", options_of());
  meet(*session, {{4, 6}, {6, 9}});
  ASSERT_FALSE(ranges_of(*session).ranges.empty());
  for (const int64_t rows : {5, 1, 3}) {
    const Sizes sizes{rows, 7};
    meet(*session, {sizes});
    const Tensors inputs = inputs_of(*session, sizes);
    const uint64_t before = session->activity().by_plan;
    const auto answer = session->call(inputs), eager = session->call_eager(inputs);
    ASSERT_TRUE(answer.ok() && eager.ok());
    EXPECT_EQ(session->activity().by_plan, before + 1);
    EXPECT_EQ(difference(*answer, *eager), 0);
    EXPECT_EQ((*eager)[1]->data() == inputs[0]->data(), rows == 1);
    EXPECT_EQ((*answer)[1]->data() == inputs[0]->data(), rows == 1);
  }
}

// Timed, unlike the others: two dozen walks over memory against one, so that any machine finds the plan faster by far.
TEST(Ranges, ACallWaitsForItsPlanWhereThatPaysAndAnOftenMetSizeIsDecidedByItself) {
  const uint64_t compiled = compiles_on_requests();
  Options options = options_of("");
  options.plugins = {"cpu"};
  options.race_seconds = 0.3;
  auto session = open("ranges_chain", options);
  meet(*session, {{4000}, {6000}});
  ASSERT_FALSE(ranges_of(*session).ranges.empty()) << explain_text(session->reports().back());
  ASSERT_NE(ranges_of(*session).ranges.back().choice, "eager") << explain_text(session->reports().back());
  meet(*session, {{5000}});  // what making such a plan takes is found out beside calls
  ASSERT_EQ(ranges_of(*session).at_once, 1u) << "of what the checked sizes' plans were made of";
  const std::vector<Sizes> all = {{4003}, {4501}, {4777}, {5003}, {5501}, {6007}, {6501}, {7001}, {7501}, {8001}};
  uint64_t waited = 0;
  for (const Sizes& sizes : all) {
    const Tensors inputs = inputs_of(*session, sizes);
    const uint64_t before = session->activity().by_plan;
    const auto answer = session->call(inputs), eager = session->call_eager(inputs);
    ASSERT_TRUE(answer.ok() && eager.ok());
    EXPECT_LT(difference(*answer, *eager), 1e-5);
    waited += session->activity().by_plan - before;
    ASSERT_TRUE(session->settle(kLong));
  }
  meet(*session, all);
  std::printf("%zu of %zu first calls waited for their plans\n", static_cast<size_t>(waited), all.size());
  EXPECT_GE(waited, 1u) << "making one takes milliseconds, and is seen to, unless others have the machine";
  EXPECT_EQ(ranges_of(*session).at_once, 1 + all.size());
  EXPECT_EQ(compiles_on_requests(), compiled);

  const size_t reports = session->reports().size();
  const Tensors often = inputs_of(*session, all[0]);
  const auto start = std::chrono::steady_clock::now();
  while (session->reports().size() == reports && std::chrono::steady_clock::now() - start < kLong) ASSERT_TRUE(session->call(often).ok());
  ASSERT_EQ(session->reports().size(), reports + 1);
  EXPECT_EQ(session->reports().back().sizes[0].value, all[0][0]);
  EXPECT_GT(session->reports().back().candidates.size(), 1u);
  EXPECT_TRUE(session->is_decided(often));
  EXPECT_EQ(compiles_on_requests(), compiled);
}

int64_t resident_bytes() {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * sysconf(_SC_PAGE_SIZE);
}

// Plans go by memory, those used longest ago first, and are made again; a thousand sizes hold no more than two hundred.
TEST(Ranges, PlansMakeRoomAndMemoryStaysFlat) {
  Options options = options_of();
  options.plan_memory = 2;
  auto session = open("ranges_graph", options);
  meet(*session, {{20, 60}, {24, 90}});
  const RangesReport known = ranges_of(*session);
  ASSERT_FALSE(known.ranges.empty());
  const std::vector<Sizes> all = draw_within(known, 1000, 11);
  int64_t after_first = 0;
  size_t most_kinds = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_TRUE(session->call(inputs_of(*session, all[i])).ok());
    if (i % 100 == 99) {
      ASSERT_TRUE(session->settle(kLong));
      most_kinds = std::max(most_kinds, session->activity().kinds);
      if (i == 399) after_first = resident_bytes();
    }
  }
  const int64_t grown = resident_bytes() - after_first;
  std::printf("%zu sizes entered, at most %zu kept, %zu let go; 600 further ones grew the process by %.1f MiB\n",
              static_cast<size_t>(ranges_of(*session).entered), most_kinds, static_cast<size_t>(ranges_of(*session).let_go),
              static_cast<double>(grown) / (1 << 20));
  EXPECT_GT(ranges_of(*session).let_go, 100u);
  EXPECT_LT(most_kinds, 400u);
  EXPECT_LT(grown, 16 << 20);
  const Tensors inputs = inputs_of(*session, all[0]);
  meet(*session, {all[0]});
  const auto answer = session->call(inputs), eager = session->call_eager(inputs);
  ASSERT_TRUE(answer.ok() && eager.ok());
  EXPECT_LT(difference(*answer, *eager), 1e-5);
}

}  // namespace
}  // namespace keirin
