// SPDX-License-Identifier: Apache-2.0
//
// Who watches runs that do not come back. Each call in flight has a Flight and says there which executable it is in; one thread of the
// process looks at all of them every kLook, and tells an executable that is still in the same run how long that has lasted at least.
// What follows from it is the executable's to say. A thread that hangs cannot be freed: what can be had is that nobody follows it.
//
// Time is counted in looks and not read from a clock: a process that was stopped for an hour has no hung runs, and a run pays for
// three stores.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "core/host/guard/fork_count.h"

namespace keirin {

class Executable;

// One call at a time enters and leaves. What it enters must outlive it.
class Flight {
 public:
  static constexpr std::chrono::milliseconds kLook{1000};

  Flight();   // watched from now on; not in a forked copy, where the thread is not, nor where there is no thread to be had
  ~Flight();  // waits while the executable is being told
  Flight(const Flight&) = delete;

  void enter(Executable& executable) {
    run_.store(run_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    in_.store(&executable, std::memory_order_release);
  }
  void leave() { in_.store(nullptr, std::memory_order_release); }

 private:
  friend class Watchdog;
  std::atomic<Executable*> in_{nullptr};  // null: between runs
  std::atomic<uint64_t> run_{0};          // which run
  // The watchdog's, under its lock.
  uint64_t seen_ = 0;
  int64_t looks_ = 0;     // at which seen_ was still running, without the first
  bool telling_ = false;
  bool watched_ = false;
  const uint64_t forks_ = fork_count();
};

}  // namespace keirin
