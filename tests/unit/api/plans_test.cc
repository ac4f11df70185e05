// SPDX-License-Identifier: Apache-2.0
//
// Plans off, in shadow and on, switched between two calls: eager's own bits where eager is to answer, nothing lost of what was decided, and
// no call dropped or mixed while threads call and another one switches.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <thread>

#include "core/api/session.h"
#include "tests/support/others.h"
#include "tests/support/shared_runtime.h"

namespace keirin {
namespace {

using namespace std::chrono_literals;
using Tensors = std::vector<TensorRef>;
using test::shared_runtime;

constexpr auto kLong = 300s;
test::Others nobody;

Options forced() {
  Options options;
  options.force = "compiled";
  options.race_seconds = 0.2;
  options.interference = &nobody;
  options.sample_rate = 0;
  return options;
}

std::unique_ptr<Session> open(const std::string& path, const Options& options) {
  auto session = Session::open(shared_runtime(), std::string(KEIRIN_SOURCE_DIR) + "/" + path, options);
  EXPECT_TRUE(session.ok()) << session.status().text();
  return session.ok() ? std::move(*session) : nullptr;
}

constexpr const char* kMlp = "bench/zoo/models/small/mlp.pt2";

bool equal_bits(const Tensors& a, const Tensors& b) {
  return a.size() == b.size() && a[0]->storage_bytes() == b[0]->storage_bytes() &&
         std::memcmp(a[0]->data(), b[0]->data(), static_cast<size_t>(a[0]->storage_bytes())) == 0;
}

double difference(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size() || a[0]->storage_bytes() != b[0]->storage_bytes()) return INFINITY;
  double worst = 0;
  const auto *x = static_cast<const float*>(a[0]->data()), *y = static_cast<const float*>(b[0]->data());
  for (int64_t i = 0; i < a[0]->storage_bytes() / 4; ++i) worst = std::max(worst, std::fabs(static_cast<double>(x[i]) - y[i]));
  return worst;
}

TEST(Plans, AreOffAndOnAgainWithNothingLost) {
  auto session = open(kMlp, forced());
  const Tensors inputs = *session->example_inputs(1);
  ASSERT_TRUE(session->compile(inputs).ok());
  const Tensors eager = *session->call_eager(inputs);
  const auto before = session->activity();
  ASSERT_EQ(before.plans, 1u);
  session->set_plans(Plans::kOff);
  EXPECT_EQ(session->plans(), Plans::kOff);
  const auto off = session->call(inputs);
  ASSERT_TRUE(off.ok());
  EXPECT_TRUE(equal_bits(*off, eager));
  EXPECT_EQ(session->activity().by_plan, before.by_plan);
  EXPECT_EQ(session->activity().eager_off, 1u);
  EXPECT_EQ(session->activity().plans, 1u) << "the plan is still there";
  EXPECT_NE(explain_text(session->reports().back()).find("plans are off"), std::string::npos);
  session->set_plans(Plans::kOn);
  ASSERT_TRUE(session->call(inputs).ok());
  EXPECT_EQ(session->activity().by_plan, before.by_plan + 1);
  EXPECT_EQ(explain_text(session->reports().back()).find("plans are off"), std::string::npos);
}

TEST(Plans, NothingNewIsDecidedWhileTheyAreOff) {
  Options options = forced();
  options.compile = When::kBackground;
  options.plans = Plans::kOff;
  auto session = open(kMlp, options);
  const Tensors inputs = *session->example_inputs(1);
  ASSERT_TRUE(session->call(inputs).ok());
  ASSERT_TRUE(session->settle(kLong));
  EXPECT_FALSE(session->is_decided(inputs));
  session->set_plans(Plans::kShadow);
  ASSERT_TRUE(session->call(inputs).ok());
  ASSERT_TRUE(session->settle(kLong));
  EXPECT_TRUE(session->is_decided(inputs)) << "in shadow decisions go on";
}

TEST(Plans, InShadowEagerAnswersAndASampleIsCompared) {
  Options options = forced();
  options.plans = Plans::kShadow;
  options.shadow_rate = 10;
  auto session = open(kMlp, options);
  const Tensors inputs = *session->example_inputs(1);
  ASSERT_TRUE(session->compile(inputs).ok());
  const Tensors eager = *session->call_eager(inputs);
  for (int i = 0; i < 40; ++i) {
    const auto answer = session->call(inputs);
    ASSERT_TRUE(answer.ok());
    EXPECT_TRUE(equal_bits(*answer, eager));
    (void)session->reports();  // waits for the comparison: none is dropped
  }
  const auto now = session->activity();
  EXPECT_EQ(now.by_plan, 0u);
  EXPECT_EQ(now.eager_shadow, 40u);
  EXPECT_EQ(now.shadow_right, 6u) << "the first three, and one of each ten after the first ten";
  EXPECT_EQ(now.shadow_wrong + now.shadow_failed + now.shadow_dropped + now.shadow_not_compared, 0u);
}

TEST(Plans, OfAModelThatWritesAreNotCompared) {
  auto session = open("tests/data/import/writes_input.pt2", forced());
  const Tensors inputs = *session->example_inputs(1);
  ASSERT_TRUE(session->compile(inputs).ok());
  ASSERT_EQ(session->activity().plans, 1u) << explain_text(session->reports().back());
  session->set_plans(Plans::kShadow);
  ASSERT_TRUE(session->call(inputs).ok());
  EXPECT_EQ(session->activity().shadow_not_compared, 1u);
  EXPECT_EQ(session->activity().shadow_right, 0u);
}

TEST(Plans, StayAsTheyWereSwitchedWhereWeightsAreReplaced) {
  auto session = open(kMlp, forced());
  const auto weights = session->weights();
  auto fresh = session->with_weights({{weights[0].first, weights[0].second}});
  ASSERT_TRUE(fresh.ok()) << fresh.status().text();
  session->set_plans(Plans::kOff);  // of the old one: whoever switched may not have known of the new one
  EXPECT_EQ((*fresh)->plans(), Plans::kOff);
}

// Each call is eager's or the plan's, whole, whatever is switched meanwhile, and every one is counted once.
TEST(Plans, SwitchedUnderLoadNoCallIsDroppedOrMixed) {
  Options options = forced();
  options.shadow_rate = 1;
  auto session = open(kMlp, options);
  constexpr int kThreads = 4;
  std::vector<Tensors> inputs, eager, plan;
  for (int t = 0; t < kThreads; ++t) {
    inputs.push_back(*session->example_inputs(static_cast<uint64_t>(t) + 1));
    eager.push_back(*session->call_eager(inputs.back()));
  }
  ASSERT_TRUE(session->compile(inputs[0]).ok());
  for (int t = 0; t < kThreads; ++t) {
    plan.push_back(*session->call(inputs[static_cast<size_t>(t)]));
    ASSERT_LT(difference(plan.back(), eager[static_cast<size_t>(t)]), 1e-4);
  }
  const auto before = session->activity();
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> calls{0}, failed{0}, other{0};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      while (!stop) {
        const auto answer = session->call(inputs[t]);
        ++calls;
        failed += !answer.ok();
        // Threads of their own may sum in another order than this one; a mixture of two calls' numbers would be far off.
        other += answer.ok() && difference(*answer, eager[t]) > 1e-4;
      }
    });
  const auto end = std::chrono::steady_clock::now() + 3s;
  for (int i = 0; std::chrono::steady_clock::now() < end; ++i) {
    session->set_plans(std::array{Plans::kOff, Plans::kShadow, Plans::kOn}[static_cast<size_t>(i % 3)]);
    std::this_thread::sleep_for(2ms);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  (void)session->reports();
  const auto after = session->activity();
  EXPECT_GT(calls, 100u);
  EXPECT_EQ(failed, 0u);
  EXPECT_EQ(other, 0u);
  const uint64_t by_plan = after.by_plan - before.by_plan;
  EXPECT_EQ(by_plan + after.eager_off + after.eager_shadow, calls);
  EXPECT_GT(by_plan, 0u);
  EXPECT_GT(after.eager_off, 0u);
  EXPECT_GT(after.eager_shadow, 0u);
  EXPECT_GT(after.shadow_right, 0u);
  EXPECT_EQ(after.shadow_right + after.shadow_dropped, after.eager_shadow) << "every call in shadow was compared or is counted as dropped";
  EXPECT_EQ(after.shadow_wrong + after.shadow_failed, 0u);
}

// The libraries of plugins divide their work by OpenMP, whose number of threads each thread has for itself, and may keep the one of the
// thread that compiled: a plan that was decided on a thread which LibTorch has not seen keeps to what the user allowed.
TEST(Plans, TakeNoMoreThreadsThanAllowed) {
  Options options = forced();
  options.threads = 1;
  options.use_cache = false;
  options.compile = When::kBackground;
  auto runtime = Runtime::open(options);
  ASSERT_TRUE(runtime.ok()) << runtime.status().text();
  const auto on_another_thread = [](const std::function<void()>& work) { std::thread(work).join(); };
  auto session = Session::open(**runtime, std::string(KEIRIN_SOURCE_DIR) + "/" + kMlp, options);
  ASSERT_TRUE(session.ok()) << session.status().text();
  const Tensors inputs = *(*session)->example_inputs(1);
  const auto threads = [] { return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}); };
  on_another_thread([&] { ASSERT_TRUE((*session)->call(inputs).ok()); });
  ASSERT_TRUE((*session)->settle(kLong));
  const auto before = (*session)->activity().by_plan;
  on_another_thread([&] {
    const auto had = threads();
    ASSERT_TRUE((*session)->call(inputs).ok());
    EXPECT_EQ(threads(), had);
  });
  EXPECT_EQ((*session)->activity().by_plan, before + 1);
}

}  // namespace
}  // namespace keirin
