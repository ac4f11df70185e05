// SPDX-License-Identifier: Apache-2.0
//
// The processor's own counter of time. Reading it is one instruction; asking a clock after a kernel runs code that the kernel pushed
// out of the caches, 1 to 2 us of it, which would count as overhead of a call.
#pragma once

#include <chrono>
#include <cstdint>

namespace keirin {

// Counts at a constant rate, alike on all cores.
inline uint64_t ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t now;
  asm volatile("mrs %0, cntvct_el0" : "=r"(now));
  return now;
#else
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

// Measured once against the steady clock, over 2 ms: good to a part in a thousand.
inline double microseconds_per_tick() {
  static const double measured = [] {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    const uint64_t first = ticks();
    Clock::time_point now = Clock::now();
    while (now - start < std::chrono::milliseconds(2)) now = Clock::now();
    return std::chrono::duration<double, std::micro>(now - start).count() / static_cast<double>(ticks() - first);
  }();
  return measured;
}

}  // namespace keirin
