// SPDX-License-Identifier: Apache-2.0
//
// What the kernel says of waiting threads, on the machine that the test runs on: threads that crowd onto one processor with a process
// of somebody else's wait and are noticed; threads that crowd out each other are not.
#include "core/tune/interference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/support/crowd.h"

namespace keirin {
namespace {

using Clock = std::chrono::steady_clock;
using test::BusyProcess;
using test::OnOneProcessor;

void spin(std::chrono::milliseconds how_long) {
  for (const auto end = Clock::now() + how_long; Clock::now() < end;) {
  }
}

TEST(Interference, ABusyProcessOnTheSameProcessorIsNoticed) {
  const OnOneProcessor here;
  const BusyProcess other;
  ProcessInterference interference;
  const uint64_t before = interference.waited_ns();
  const auto begin = Clock::now();
  spin(std::chrono::milliseconds(400));
  const auto wall = static_cast<double>(std::chrono::nanoseconds(Clock::now() - begin).count());
  const auto waited = static_cast<double>(interference.waited_ns() - before);
  EXPECT_GT(waited, 0.2 * wall) << "about half of it";
  EXPECT_LE(waited, 1.01 * wall);
}

TEST(Interference, ThreadsThatWaitForEachOtherAreNone) {
  const OnOneProcessor here;
  ProcessInterference interference;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back([&] { while (!stop) {} });
  const auto begin = Clock::now();  // first, and the end last: this thread may wait between any two of these lines
  const uint64_t before = interference.waited_ns(), used = interference.used_ns();
  spin(std::chrono::milliseconds(400));
  const auto had = static_cast<double>(interference.used_ns() - used);
  const auto waited = static_cast<double>(interference.waited_ns() - before);
  const auto wall = static_cast<double>(std::chrono::nanoseconds(Clock::now() - begin).count());
  stop = true;
  for (std::thread& thread : threads) thread.join();
  // Four threads wait three quarters of the time each. What others had of the one processor, if tests run beside this one, is all that may
  // count.
  EXPECT_LE(waited, 1.02 * (wall - had) + 0.01 * wall);
}

TEST(Interference, ThreadsThatComeAndGoAreCounted) {
  const OnOneProcessor here;
  const BusyProcess other;
  ProcessInterference interference;
  for (int i = 0; i < 5; ++i) {
    const uint64_t before = interference.waited_ns();
    std::atomic<uint64_t> inside{0};
    std::thread worker([&] {
      spin(std::chrono::milliseconds(100));
      inside = interference.waited_ns() - before;  // while it is there; a thread that ended is not asked any more
    });
    worker.join();
    EXPECT_GT(inside.load(), 10'000'000u);
    (void)interference.waited_ns();
  }
}

TEST(Interference, MoreThatWantToRunThanProcessorsAreACrowdUnlessTheyAreOurs) {
  ProcessInterference interference;
  const auto share = [&] {
    int crowded = 0;
    for (int i = 0; i < 100; ++i) {
      spin(std::chrono::milliseconds(2));
      crowded += interference.is_crowded();
    }
    return crowded;
  };
  const size_t processors = static_cast<size_t>(::sysconf(_SC_NPROCESSORS_ONLN));
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < processors; ++i) threads.emplace_back([&] { while (!stop) {} });
  int least = 100;  // tests may run beside this one
  for (int tries = 0; tries < 10 && least > 20; ++tries) least = std::min(least, share());
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(least, 20) << "threads of this process crowd out each other";
  const std::vector<BusyProcess> others(processors);
  EXPECT_GE(share(), 90);
}

TEST(Interference, TotalsNeverShrink) {
  ProcessInterference interference;
  uint64_t waited = interference.waited_ns(), used = interference.used_ns(), stolen = interference.stolen_ns();
  for (int i = 0; i < 200; ++i) {
    std::thread([] { spin(std::chrono::milliseconds(1)); }).join();
    const uint64_t w = interference.waited_ns(), u = interference.used_ns(), s = interference.stolen_ns();
    ASSERT_GE(w, waited);
    ASSERT_GT(u, used);
    ASSERT_GE(s, stolen);
    waited = w, used = u, stolen = s;
  }
}

}  // namespace
}  // namespace keirin
