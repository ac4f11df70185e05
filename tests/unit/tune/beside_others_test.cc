// SPDX-License-Identifier: Apache-2.0
//
// Who is faster while somebody else has the processor half of the time, for good: on the machine that the test runs on.
#include "core/tune/beside_others.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "core/base/background.h"
#include "tests/support/crowd.h"

namespace keirin {
namespace {

using Clock = std::chrono::steady_clock;
using test::BusyProcess;
using test::OnOneProcessor;

constexpr uint64_t kTurns = 16'000'000;  // a few milliseconds: longer than a stretch without the other process

// One piece of code for all who work: the same loop took twice as long at one address as at another.
[[gnu::noinline]] void work(uint64_t turns) {
  for (uint64_t i = 0; i < turns; ++i) asm volatile("" : : "r"(i));  // not left out
}

Runner runner(std::string name, double share) {
  return {std::move(name), [turns = static_cast<uint64_t>(share * kTurns)] {
            work(turns);
            return Status();
          }};
}

RaceOptions in_three_seconds() {
  RaceOptions options;
  options.limit_ns = 3'000'000'000;
  options.patience_ns = 0;
  return options;
}

// Where the hypervisor takes the one processor away, a race says so and tells nothing, or ends undecided: then another one. Nothing, and
// it is printed, where four in a row were disturbed.
template <class Fn>
std::optional<size_t> winner_of(Fn&& hold) {
  std::string why;
  for (int races = 1; races <= 4; ++races) {
    const Result<RaceSheet> sheet = hold();
    EXPECT_TRUE(sheet.ok());
    if (!sheet.ok()) return 0;
    why = sheet->disturbed;
    const bool undecided = sheet->rows[1].outcome == RaceOutcome::kUndecided;
    if (why.empty() && (!undecided || races == 4)) return sheet->winner;
  }
  std::printf("not tested, others had the machine for four races: %s\n", why.c_str());
  return {};
}

double ns(Clock::duration d) { return static_cast<double>(std::chrono::nanoseconds(d).count()); }

TEST(OwnClock, StandsStillWhileOthersHaveTheProcessor) {
  const OnOneProcessor here;
  const BusyProcess other;
  OwnClock clock;
  if (!clock.ticks()) GTEST_SKIP() << "this kernel does not count what threads wait";
  const auto begin = Clock::now();
  const uint64_t own = clock.now_ns();
  while (Clock::now() - begin < std::chrono::milliseconds(400)) work(1000);
  const double wall = ns(Clock::now() - begin), ours = static_cast<double>(clock.now_ns() - own);
  EXPECT_LT(ours, 0.8 * wall) << "about half of it";
  EXPECT_GT(ours, 0.05 * wall);
}

TEST(OwnClock, CountsSleepAndNeverGoesBack) {
  const OnOneProcessor here;
  const BusyProcess other;
  OwnClock clock;
  if (!clock.ticks()) GTEST_SKIP() << "this kernel does not count what threads wait";
  const uint64_t before = clock.now_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_GE(clock.now_ns() - before, 50'000'000u) << "who sleeps waits for somebody, and not for a processor";
  uint64_t last = clock.now_ns();
  for (const auto end = Clock::now() + std::chrono::milliseconds(300); Clock::now() < end;) {
    const uint64_t now = clock.now_ns();
    ASSERT_GE(now, last);
    last = now;
  }
}

// In the background and in front of it.
TEST(BesideOthers, WhatIsClearlyFasterIsChosen) {
  if (!OwnClock().ticks()) GTEST_SKIP() << "this kernel does not count what threads wait";
  const OnOneProcessor here;
  const BusyProcess other;
  const std::vector<Runner> runners = {runner("eager", 1.5), runner("cpu/all", 1), runner("slow", 2)};
  const auto chosen = [&] { return winner_of([&] { return race_beside_others(runners, in_three_seconds()); }); };
  EXPECT_EQ(chosen().value_or(1), 1u);
  EXPECT_EQ(in_background(chosen).value_or(1), 1u) << "which has a share, or what is left";
}

TEST(BesideOthers, WhatIsSlowerEqualOrHardlyFasterIsNot) {
  if (!OwnClock().ticks()) GTEST_SKIP() << "this kernel does not count what threads wait";
  const OnOneProcessor here;
  const BusyProcess other;
  for (const double share : {1.3, 1.05, 1.0, 0.96}) {
    const auto sheet = race_beside_others({runner("eager", 1), runner("planted", share)}, in_three_seconds());
    ASSERT_TRUE(sheet.ok());
    EXPECT_EQ(sheet->winner, 0u) << share;
  }
}

// A thread and a helper that share the work of a call, as a team of LibTorch's does.
class Pair {
 public:
  ~Pair() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    helper_.join();
  }
  std::vector<int> team() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return id_ != 0; });
    return {id_};
  }
  Runner runner(std::string name, double own, double helpers) {
    return {std::move(name), [this, own = turns(own), helpers = turns(helpers)] {
              std::unique_lock lock(mutex_);
              asked_ = helpers;
              changed_.notify_all();
              lock.unlock();
              work(own);
              lock.lock();
              changed_.wait(lock, [&] { return asked_ == 0; });
              return Status();
            }};
  }

 private:
  static uint64_t turns(double share) { return static_cast<uint64_t>(share * kTurns); }
  void help() {
    std::unique_lock lock(mutex_);
    id_ = static_cast<int>(::syscall(SYS_gettid));
    changed_.notify_all();
    for (;;) {
      changed_.wait(lock, [&] { return asked_ > 0 || ends_; });
      if (ends_) return;
      const uint64_t turns = asked_;
      lock.unlock();
      work(turns);
      lock.lock();
      asked_ = 0;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t asked_ = 0;
  int id_ = 0;
  bool ends_ = false;
  std::thread helper_{[this] { help(); }};
};

// Two processes beside two threads: neither thread has a processor of its own.
TEST(BesideOthers, ATeamIsAsFastAsItsBusiestThread) {
  if (!OwnClock().ticks()) GTEST_SKIP() << "this kernel does not count what threads wait";
  const OnOneProcessor here;
  const BusyProcess other;
  Pair pair;
  const Runner eager = pair.runner("eager", 0.5, 0.5);
  const auto winner = [&](const Runner& candidate) {
    return winner_of([&] { return race_beside_others({eager, candidate}, in_three_seconds(), pair.team()); });
  };
  EXPECT_EQ(winner(pair.runner("cpu/all", 0.3, 0.3)).value_or(1), 1u);
  EXPECT_EQ(winner(pair.runner("equal", 0.5, 0.5)).value_or(0), 0u);
  EXPECT_EQ(winner(pair.runner("alone", 0.7, 0)).value_or(0), 0u) << "less work, and nobody shares it";
  EXPECT_EQ(winner(pair.runner("handed over", 0, 0.7)).value_or(0), 0u) << "whoever does it";
}

// What a thread of its own does for a call is not free: the caller sleeps meanwhile.
TEST(BesideOthers, WhatAnotherThreadDoesCounts) {
  if (!OwnClock().ticks()) GTEST_SKIP() << "this kernel does not count what threads wait";
  const OnOneProcessor here;
  const BusyProcess other;
  std::mutex mutex;
  std::condition_variable changed;
  bool asked = false, ends = false;
  std::thread helper([&] {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return asked || ends; });
      if (ends) return;
      work(kTurns);
      asked = false;
      changed.notify_all();
    }
  });
  const Runner elsewhere{"elsewhere", [&] {
                           std::unique_lock lock(mutex);
                           asked = true;
                           changed.notify_all();
                           changed.wait(lock, [&] { return !asked; });
                           return Status();
                         }};
  const auto sheet = race_beside_others({runner("eager", 1), elsewhere}, in_three_seconds());
  {
    const std::lock_guard lock(mutex);
    ends = true;
  }
  changed.notify_all();
  helper.join();
  ASSERT_TRUE(sheet.ok());
  EXPECT_EQ(sheet->winner, 0u);
}

}  // namespace
}  // namespace keirin
