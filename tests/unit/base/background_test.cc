// SPDX-License-Identifier: Apache-2.0
#include "core/base/background.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

namespace keirin {
namespace {

struct Standing {
  int policy, nice;
  std::thread::id thread;
};

Standing standing() {
  return {::sched_getscheduler(0), ::getpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid))), std::this_thread::get_id()};
}

TEST(Background, RunsElsewhereAndLeavesTheCallerAsHeWas) {
  const Standing before = standing();
  EXPECT_EQ(in_background([] { return giving_way() == GiveWay::kNot; }), false);
  const Standing there = in_background(standing);
  EXPECT_NE(there.thread, before.thread);
  EXPECT_TRUE(there.policy == SCHED_IDLE || there.nice > before.nice);
  const Standing after = standing();
  EXPECT_EQ(after.policy, before.policy);
  EXPECT_EQ(after.nice, before.nice);
}

TEST(Background, WhatOutlivesItIsStartedByTheOneWhoWaits) {
  const Standing here = standing();
  const auto both = in_background([] { return std::pair(in_foreground(standing), in_foreground(standing)); });
  for (const Standing& there : {both.first, both.second}) {
    EXPECT_EQ(there.thread, here.thread);
    EXPECT_EQ(there.policy, here.policy);
    EXPECT_EQ(there.nice, here.nice);
  }
  EXPECT_EQ(in_foreground(standing).thread, here.thread) << "nobody waits: here";
}

// Every processor taken: a thread that gives way to all would wait until they are done.
// Memory runs out wherever it is asked for: the process that serves goes on.
TEST(Background, WhatItRaisesReachesTheOneWhoWaits) {
  EXPECT_THROW(run_in_background([] { throw std::bad_alloc(); }), std::bad_alloc);
  EXPECT_THROW((void)in_background([]() -> int { throw std::runtime_error("there"); }), std::runtime_error);
  bool caught = false;
  run_in_background([&] {
    try {
      run_in_foreground([] { throw std::bad_alloc(); });
    } catch (const std::bad_alloc&) {
      caught = true;
    }
  });
  EXPECT_TRUE(caught);
  EXPECT_EQ(in_background([] { return 7; }), 7) << "and others after it";
}

TEST(Background, HasAShareWhereCallsLeaveNothing) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> calls;
  cpu_set_t mine;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(mine), &mine), 0);
  for (int i = 0; i < CPU_COUNT(&mine); ++i)
    calls.emplace_back([&] {
      while (!stop) {
      }
    });
  std::this_thread::sleep_for(std::chrono::milliseconds(5200));  // an answer holds for five seconds
  EXPECT_FALSE(processors_are_idle());
  const auto [how, there] = in_background([] { return std::pair(giving_way(), standing()); });
  stop = true;
  for (std::thread& call : calls) call.join();
  EXPECT_EQ(how, GiveWay::kButForAShare);
  EXPECT_EQ(there.policy, SCHED_OTHER);
  EXPECT_GT(there.nice, standing().nice);
}

double resident_mb() {
  double pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE)) / (1 << 20);
}

// Threads that are there at the same time allocate apart, and each leaves something behind: not what its work has freed.
TEST(Background, WhatWorkHasFreedIsGivenBackByEachThread) {
  keep_freed_memory();
  const double before = resident_mb();
  constexpr int kThreads = 6, kPieces = 56;
  std::atomic<int> there{0};
  std::vector<void*> left(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      run_in_background([&] {
        std::vector<std::vector<char>> pieces;
        for (++there; there < kThreads;) std::this_thread::yield();
        left[static_cast<size_t>(t)] = ::malloc(100);
        for (int i = 0; i < kPieces; ++i) pieces.emplace_back(1 << 20, 'x');
      });
    });
  for (std::thread& thread : threads) thread.join();
  give_back_memory();
  EXPECT_LT(resident_mb() - before, 0.1 * kThreads * kPieces);
  for (void* piece : left) ::free(piece);
}

void expect_held(GiveWay how) {
  std::atomic<int> rounds{0};
  std::atomic<bool> stop{false};
  std::thread work([&] {
    give_way(how);
    while (!stop) pass_gate(), ++rounds;
  });
  hold_background(true);
  while (num_held() == 0) std::this_thread::yield();
  const int before = rounds;
  pass_gate();  // who does not give way is not held
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(rounds, before);
  hold_background(false);
  while (rounds == before) std::this_thread::yield();
  EXPECT_EQ(num_held(), 0);
  stop = true;
  work.join();
}

TEST(Background, IsHeldBetweenItsRuns) {
  expect_held(GiveWay::kButForAShare);
  expect_held(GiveWay::kToAll);
}

}  // namespace
}  // namespace keirin
