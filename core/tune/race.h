// SPDX-License-Identifier: Apache-2.0
//
// Which is faster, beyond noise? Times callables against each other on the machine as it is, in blocks A B B A (of long
// calls A B and B A in turn), until the exact interval of the gain lies on one side of the threshold. What it is not: a
// judge of results, that is verify.h. The invariant: `accept` is given to no callable that is not faster than the baseline
// (0.1 % of trials at gain 0), and what is not shown stays with the baseline. A stretch in which others had the processor
// is taken again, after a pause in which they may end; where more than a fifth stay disturbed, nothing is concluded.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/tune/interference.h"
#include "core/tune/stats.h"

namespace keirin {

// One way of doing the call: enqueues, RaceOptions::wait waits.
struct Runner {
  std::string name;
  std::function<Status()> call;
  int64_t memory_bytes = 0;  // among winners within 2 % the smaller one is taken
};

enum class RaceHint { kLatency, kThroughput };

struct RaceOptions {
  double threshold = 0.02;               // least gain, as a share of the candidate's time; the machine's A/A gate if larger
  RaceHint hint = RaceHint::kLatency;
  uint64_t limit_ns = 30'000'000'000;    // per pair; a long call gets at least its first look
  std::function<Status()> wait;          // synchronise with the device; null: calls return when done
  std::function<uint64_t()> now_ns;      // null: the monotonic clock
  std::function<void(uint64_t)> pause;   // sleeps that many ns before a disturbed stretch is taken again; null: does so
  Interference* interference = nullptr;  // null: the process's, as the kernel counts it
  std::function<DeviceCondition()> condition;  // of the device that works; null: nobody tells
  uint64_t patience_ns = 3'000'000'000;  // of all pauses of a race together; never more than a tenth of limit_ns
  // The winner is measured once more against the baseline, in blocks spread over so many ns, and has to win again: a
  // race of short calls is over in a moment, and a machine is not the same a second later (where a hypervisor puts
  // threads changed the ratio of a model of 40 us by a quarter from one second to the next). 0: the race alone. For
  // figures that are published.
  uint64_t confirm_ns = 0;
  // How far apart the processors are that a call's threads work on (core/tune/processors.h), asked around each block of what is confirmed:
  // figures are of one place alone. Null: nobody tells.
  std::function<double()> apart_ns;
  std::vector<size_t> one_must_race;     // of these runners the best of the screen is raced, however slow it is
  std::function<void()> between;         // called before each batch of calls; the time it takes counts nowhere
  std::string lock_path;                 // one race at a time per device; empty: no lock
  std::atomic<bool>* cancel = nullptr;
};

enum class RaceOutcome {
  kBaseline,   // this runner is what the others were measured against
  kAccept,     // faster, beyond noise
  kReject,     // shown not to be faster by the threshold
  kUndecided,  // neither, at the last look or the limit
  kScreened,   // not raced: so much slower than the best in the screen, or one of too many long ones
  kFailed,     // a call returned an error: see status
  kDisturbed,  // too much of what was timed was disturbed: nothing may be concluded, shown or stored
  kCancelled
};
std::string_view outcome_name(RaceOutcome outcome);

struct RaceRow {
  std::string name;
  RaceOutcome outcome = RaceOutcome::kUndecided;
  double ns = 0;           // median of its samples under the hint; of the screen if it was not raced; 0: disturbed
  double baseline_ns = 0;  // the baseline's in the same race; 0: not raced against it, or the baseline
  double gain = 1, gain_low = 1, gain_high = 1;  // baseline's time over its own; 1 = equal
  int blocks = 0;
  double first_over_steady = 0;  // first call over the warmed-up one: above 3, something was compiled or built on the way
  Status status;                 // of a failed call
  std::string note;              // in words
};

struct RaceSheet {
  std::vector<RaceRow> rows;  // parallel to the runners
  size_t baseline = 0;        // the runner that the candidates were raced against
  size_t winner = 0;          // the baseline, or the accepted runner with the largest gain
  double load_before = 0, load_after = 0;  // of the machine
  double apart_ns = 0;                     // RaceOptions::apart_ns, where the winner was confirmed; 0: it was not, or nobody tells
  std::string disturbed;                   // why a row is kDisturbed, the first of them; empty: none is
  bool baseline_disturbed =
      false;  // eager with replay had no undisturbed race of its own: which of the two is better is not known
};

// Races runners[1..] against the better of runners[0] (eager) and, if replay_of_eager is not 0, that runner, which has to win
// its own race first. `exhausted` if the lock is taken by another process, the status of runners[0] if it fails.
Result<RaceSheet> race(const std::vector<Runner>& runners, size_t replay_of_eager, const RaceOptions& options);

// Median time of one call after warming up, in ns.
Result<double> time_call(const Runner& runner, const RaceOptions& options);

}  // namespace keirin
