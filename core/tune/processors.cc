// SPDX-License-Identifier: Apache-2.0
#include "core/tune/processors.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace keirin {
namespace {

constexpr int kMostOthers = 7;
constexpr uint32_t kJourneys = 100;  // of a try
constexpr int kTries = 8;
constexpr std::chrono::milliseconds kPatience{20};  // of both threads: they may never run at once

using Clock = std::chrono::steady_clock;

std::vector<int> usable_processors() {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  std::vector<int> out;
  if (::sched_getaffinity(0, sizeof(mine), &mine) != 0) return out;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &mine)) out.push_back(i);
  return out;
}

bool stay_on(int processor) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(processor, &one);
  return ::pthread_setaffinity_np(::pthread_self(), sizeof(one), &one) == 0;
}

// Of one pair; 0 where they did not meet in time.
double journey_ns(int here, int there) {
  alignas(128) std::atomic<uint32_t> line{0};
  const Clock::time_point end = Clock::now() + kPatience;
  const auto arrives = [&](uint32_t number) {
    for (uint32_t spins = 1; line.load(std::memory_order_acquire) != number; ++spins)
      if (spins % 4096 == 0 && Clock::now() > end) return false;
    return true;
  };
  constexpr uint32_t kAll = kJourneys * kTries;
  std::thread other([&] {
    if (!stay_on(there)) return;
    for (uint32_t i = 0; i < kAll && arrives(2 * i + 1); ++i) line.store(2 * i + 2, std::memory_order_release);
  });
  double least = 0;
  std::thread own([&] {
    if (!stay_on(here)) return;
    Clock::time_point begin = Clock::now();
    for (uint32_t i = 0; i < kAll; ++i) {
      line.store(2 * i + 1, std::memory_order_release);
      if (!arrives(2 * i + 2)) break;
      if ((i + 1) % kJourneys != 0) continue;
      const Clock::time_point now = Clock::now();
      const double ns = std::chrono::duration<double, std::nano>(now - begin).count() / kJourneys;
      least = least == 0 ? ns : std::min(least, ns);
      begin = now;
    }
  });
  own.join();
  other.join();
  return least;
}

}  // namespace

double processors_apart_ns() {
  const std::vector<int> processors = usable_processors();
  const auto others = static_cast<int>(processors.size()) - 1;
  double farthest = 0;
  for (int k = 1; k <= std::min(others, kMostOthers); ++k) {
    const int at = others <= kMostOthers ? k : k * others / kMostOthers;
    farthest = std::max(farthest, journey_ns(processors[0], processors[static_cast<size_t>(at)]));
  }
  return farthest;
}

}  // namespace keirin
