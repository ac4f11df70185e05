// SPDX-License-Identifier: Apache-2.0
//
// A race where others have the processor and will not end, as the calls do that a service answers: by a clock that stands still while
// the threads that do the work wait for a processor. What is left that others change, caches and memory, they change for both sides of a
// pair, so who is clearly faster by that clock is faster. What it is not: a measurement. Its times and gains are those of a machine that
// nobody asked about, and none of them may be shown or kept.
#pragma once

#include <time.h>

#include <cstdint>
#include <vector>

#include "core/tune/race.h"

namespace keirin {

// Of the thread that makes it, alone or with a team whose threads share its work: between two readings as long as the busiest of them had a
// processor, and as long as the thread slept while none of the others had one or waited for one, which is waiting for somebody else. So a
// thread alone has its time less what it waited for a processor. What a team's threads spin for each other counts, as it does for calls
// that run then. Only grows.
class OwnClock {
 public:
  // `team`: ids of the other threads, which outlive it.
  explicit OwnClock(const std::vector<int>& team = {});
  ~OwnClock();
  OwnClock(const OwnClock&) = delete;
  OwnClock& operator=(const OwnClock&) = delete;
  // False where the kernel does not count what threads wait.
  bool ticks() const { return ticks_; }
  uint64_t now_ns();

 private:
  struct Member {
    int schedstat = -1;  // open
    clockid_t used = 0;
    uint64_t used_ns = 0, waited_ns = 0;            // had a processor, waited for one: at the last reading
    uint64_t next_used_ns = 0, next_waited_ns = 0;  // at this one
  };
  uint64_t read();  // of all members, and the time

  std::vector<Member> members_;  // the thread itself first
  bool ticks_ = true;
  uint64_t wall_ns_ = 0, total_ns_ = 0;
};

// A gain below this, as a share of the candidate's time, is not clear.
inline constexpr double kClearlyFaster = 0.1;

// Races as race.h does, timed by the OwnClock of this thread and its team, and accepts a gain of kClearlyFaster or more. Error:
// `unsupported`, where the kernel does not count what threads wait.
Result<RaceSheet> race_beside_others(const std::vector<Runner>& runners, RaceOptions options, const std::vector<int>& team = {});

}  // namespace keirin
