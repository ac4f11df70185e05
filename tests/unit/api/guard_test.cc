// SPDX-License-Identifier: Apache-2.0
//
// The breaker on a clock of the test's own, and the checker: samples are checked once, on copies, and a wrong one revokes once.
#include "core/api/guard.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/host/heap_services.h"

namespace keirin {
namespace {

using std::chrono::seconds;
using Time = CircuitBreaker::Time;

TEST(CircuitBreaker, OpensAfterThreeFailuresInAMinute) {
  CircuitBreaker breaker;
  const Time start{};
  EXPECT_TRUE(breaker.admits(start));
  EXPECT_FALSE(breaker.failed(start));
  EXPECT_FALSE(breaker.failed(start + seconds(61))) << "the first is too long ago";
  EXPECT_FALSE(breaker.failed(start + seconds(70)));
  EXPECT_TRUE(breaker.admits(start + seconds(71)));
  EXPECT_TRUE(breaker.failed(start + seconds(72)));
  EXPECT_FALSE(breaker.admits(start + seconds(73)));
}

TEST(CircuitBreaker, SuccessesBetweenFailuresDoNotHideThem) {
  CircuitBreaker breaker;
  const Time start{};
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(breaker.failed(start));
    breaker.succeeded();
  }
  EXPECT_TRUE(breaker.failed(start));
}

TEST(CircuitBreaker, LetsOneCallTryAndWaitsTwiceAsLongEachTime) {
  CircuitBreaker breaker;
  Time now{};
  for (int i = 0; i < 3; ++i) breaker.failed(now);
  int64_t wait = 60;
  for (int round = 0; round < 8; ++round) {
    EXPECT_FALSE(breaker.admits(now + seconds(wait - 1)));
    now += seconds(wait);
    EXPECT_TRUE(breaker.admits(now)) << "half open after " << wait << " s";
    EXPECT_FALSE(breaker.admits(now)) << "one call only";
    EXPECT_FALSE(breaker.failed(now)) << "open already";
    wait = std::min<int64_t>(wait * 2, 3600);
  }
  now += seconds(wait);
  EXPECT_TRUE(breaker.admits(now));
  breaker.succeeded();
  EXPECT_TRUE(breaker.admits(now));
  EXPECT_FALSE(breaker.failed(now)) << "closed, and forgotten";
}

TEST(PlanGuard, TakesTheFirstThreeAndOneInSoMany) {
  PlanGuard guard;
  guard.sample_rate = 10;
  std::vector<int> taken(100);
  for (int i = 0; i < 1000; ++i) taken[static_cast<size_t>(i / 10)] += guard.takes_sample();
  EXPECT_GE(taken[0], 3);
  EXPECT_LE(taken[0], 4);
  for (size_t row = 1; row < taken.size(); ++row) EXPECT_EQ(taken[row], 1) << "calls from " << row * 10;
  guard.sample_rate = 1;
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(guard.takes_sample());
  guard.sample_rate = 0;
  EXPECT_FALSE(guard.takes_sample());
}

// A plan that is wrong in every k-th call, whichever those are, meets a sample before long: some k times the rate on average.
TEST(PlanGuard, MeetsWhateverComesBackInStep) {
  for (const uint64_t rate : {2, 10, 100})
    for (const uint64_t step : {2, 3, 5, 10, 20, 100}) {
      std::vector<bool> met(step);
      PlanGuard guard;
      guard.sample_rate = rate;
      for (uint64_t n = 0; n < 20 * rate * step; ++n)
        if (guard.takes_sample() && n >= 3) met[n % step] = true;
      for (uint64_t k = 0; k < step; ++k) EXPECT_TRUE(met[k]) << "each " << step << "th call from the " << k << "th, at rate " << rate;
    }
}

TEST(CallChecker, ChecksCopiesAndRevokesOnce) {
  test::HeapServices services;
  auto guard = std::make_shared<PlanGuard>();
  std::atomic<int> checks{0}, revocations{0};
  guard->check = [&](const PlanGuard::Tensors& inputs, const PlanGuard::Tensors& outputs) -> std::string {
    ++checks;
    const float in = *static_cast<const float*>(inputs[0]->data()), out = *static_cast<const float*>(outputs[0]->data());
    return out == 2 * in ? "" : "wrong";
  };
  guard->revoke = [&](const std::string& what) {
    EXPECT_EQ(what, "wrong");
    ++revocations;
  };
  CallChecker checker;
  const TensorRef in = test::tensor_of<float>(DType::k_f32, {1}, {3}), out = test::tensor_of<float>(DType::k_f32, {1}, {6});
  checker.submit(guard, {in}, {out}, services);
  *static_cast<float*>(in->data()) = 100;  // the caller's again
  checker.drain();
  EXPECT_EQ(checks, 1);
  EXPECT_EQ(revocations, 0);
  for (int i = 0; i < 3; ++i) {
    checker.submit(guard, {in}, {out}, services);
    checker.drain();
  }
  EXPECT_EQ(revocations, 1);
  EXPECT_EQ(checks, 2) << "a plan that is gone is not checked";
}

TEST(CallChecker, DropsSamplesRatherThanQueueingThem) {
  test::HeapServices services;
  auto guard = std::make_shared<PlanGuard>();
  std::mutex gate;
  std::atomic<int> checks{0};
  guard->check = [&](const auto&, const auto&) {
    const std::lock_guard wait(gate);
    ++checks;
    return std::string();
  };
  CallChecker checker;
  {
    const std::lock_guard closed(gate);
    for (int i = 0; i < 50; ++i) checker.submit(guard, {}, {}, services);
  }
  checker.drain();
  EXPECT_LE(checks, 6);
  EXPECT_GE(checks, 4);
}

// A copy of the process has no such thread: nothing there may wait for it.
TEST(CallChecker, AForkedCopyChecksNothingAndWaitsForNothing) {
  test::HeapServices services;
  auto guard = std::make_shared<PlanGuard>();
  std::atomic<int> checks{0};
  guard->check = [&](const auto&, const auto&) { return ++checks, std::string(); };
  auto checker = std::make_unique<CallChecker>();
  checker->submit(guard, {}, {}, services);
  checker->drain();
  const pid_t copy = ::fork();
  if (copy == 0) {
    ::alarm(10);
    checker->submit(guard, {}, {}, services);
    checker->drain();
    checker.reset();
    ::_exit(checks == 1 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(copy, &status, 0), copy);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  checker->submit(guard, {}, {}, services);
  checker->drain();
  EXPECT_EQ(checks, 2);
}

}  // namespace
}  // namespace keirin
