// SPDX-License-Identifier: Apache-2.0
//
// A race where others have the processor and will not end, as the calls do that a service answers: by a clock that stands still while
// the timed thread waits for a processor. What is left that others change, caches and memory, they change for both sides of a pair, so
// who is clearly faster by that clock is faster. What it is not: a measurement. Its times and gains are those of a machine that nobody
// asked about, and none of them may be shown or kept.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tune/race.h"

namespace keirin {

// Nanoseconds since some moment, less what the thread that made it waited for a processor; asleep is not waiting. For that thread alone,
// which does all of the work itself: what a thread of somebody else's waits for it is not seen. Only grows.
class OwnClock {
 public:
  OwnClock();
  ~OwnClock();
  OwnClock(const OwnClock&) = delete;
  OwnClock& operator=(const OwnClock&) = delete;
  // False where the kernel does not count what threads wait.
  bool ticks() const { return file_ >= 0; }
  uint64_t now_ns();

 private:
  int file_;
  uint64_t last_ns_ = 0;
};

// A gain below this, as a share of the candidate's time, is not clear.
inline constexpr double kClearlyFaster = 0.1;

// Races as race.h does, timed by this thread's OwnClock, and accepts a gain of kClearlyFaster or more. Error: `unsupported`, where the
// kernel does not count what threads wait.
Result<RaceSheet> race_beside_others(const std::vector<Runner>& runners, RaceOptions options);

}  // namespace keirin
