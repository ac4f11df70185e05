// SPDX-License-Identifier: Apache-2.0
//
// What a process lost to others while it was timed: its threads stood ready to run and somebody else had the processor.
// The race asks before and after every stretch that it times, so that a disturbed one is never taken for a measurement.
// What it cannot see: neighbours that slow a running thread down (the other half of a core, caches, memory, clocks), where there are
// processors for all of them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "core/host/find/hardware.h"

namespace keirin {

// A timed stretch is disturbed if threads waited for more than this share of it, all their waits together (or by a crowd: Stretch).
inline constexpr double kDisturbedShare = 0.05;

// What disturbed a device between two readings of its condition, in words; empty: nothing that its driver tells.
std::string what_disturbed(const DeviceCondition& before, const DeviceCondition& after);

// Nanoseconds for which the thread of an open /proc/.../schedstat stood ready and did not run; nothing where it is gone, or the kernel does
// not count them.
std::optional<uint64_t> delay_ns(int schedstat);

// Totals that only grow; the difference of two readings is what happened between them. One thread at a time.
class Interference {
 public:
  virtual ~Interference() = default;
  // Nanoseconds for which threads waited for a processor that others had.
  virtual uint64_t waited_ns() = 0;
  // Nanoseconds that the hypervisor gave to others, of all processors; in steps of 10 ms.
  virtual uint64_t stolen_ns() = 0;
  // Processor time of this process.
  virtual uint64_t used_ns() = 0;
  // Whether at this moment more threads want to run than the machine has processors, somebody else's among them. Who waits then is
  // told when it runs again, maybe after the stretch; and two processors may be the halves of one core.
  virtual bool is_crowded() { return false; }
  // What it does not tell of did not happen: times that are unsteady for no known reason are believed. For tests that
  // run beside others.
  virtual bool knows_all() const { return false; }
};

// A stretch that is timed, from its construction on.
class Stretch {
 public:
  explicit Stretch(Interference& interference)
      : interference_(interference), crowded_(interference.is_crowded()), waited_ns_(interference.waited_ns()) {}
  // Whether others left the processors to this process meanwhile; asked at its end, when it lasted so long.
  bool was_quiet(double lasted_ns) const {
    const uint64_t waited = interference_.waited_ns() - waited_ns_;
    return static_cast<double>(waited) <= kDisturbedShare * lasted_ns && !crowded_ && !interference_.is_crowded();
  }

 private:
  Interference& interference_;
  const bool crowded_;
  const uint64_t waited_ns_;
};

// As Linux counts it: run delays of /proc/self/task/*/schedstat, or involuntary context switches where the kernel keeps
// no delays. Threads that wait for each other (more threads than processors) do not count: what waits is counted
// only up to the processor time that this process did not have. A thread that gives way (core/base/background.h) counts
// what it waited for itself, all of it.
class ProcessInterference final : public Interference {
 public:
  // `sees_waits`: false where other processes work for this one (regions that run in a worker). Who waits for whom
  // cannot be told then, and nothing counts as waited.
  explicit ProcessInterference(bool sees_waits = true);
  ~ProcessInterference() override;
  ProcessInterference(const ProcessInterference&) = delete;
  ProcessInterference& operator=(const ProcessInterference&) = delete;

  uint64_t waited_ns() override;
  uint64_t stolen_ns() override;
  uint64_t used_ns() override;
  bool is_crowded() override;

 private:
  struct Thread {
    int file;
    uint64_t delay_ns;  // at the last reading
  };
  uint64_t delay_of_threads();  // since the last reading
  void find_threads(bool first);

  std::map<int, Thread> threads_;  // by thread id
  const bool sees_waits_;
  bool has_delays_ = true, only_this_thread_ = false;
  int load_ = -1;  // /proc/loadavg
  uint64_t total_ns_ = 0, last_wall_ns_ = 0, last_used_ns_ = 0;
  uint64_t last_switches_ = 0;
  uint64_t num_processors_ = 1;  // that this process may use
};

}  // namespace keirin
