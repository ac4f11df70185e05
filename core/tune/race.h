// SPDX-License-Identifier: Apache-2.0
//
// Which is faster, beyond noise? Times callables against each other on the machine as it is, in blocks A B B A, until the exact
// interval of the gain lies on one side of the threshold. What it is not: a judge of results, that is verify.h.
// The invariant: `accept` is given to no callable that is not faster than the baseline (0.1 % of trials at gain 0), and what
// is not shown stays with the baseline.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
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
  double aa_spread = 0;                  // the machine's spread of one sample of the baseline, if known: 3x it is contention
  uint64_t limit_ns = 30'000'000'000;    // per pair; a long call gets at least its first look
  std::function<Status()> wait;          // synchronise with the device; null: calls return when done
  std::function<uint64_t()> now_ns;      // null: the monotonic clock
  std::function<void(uint64_t)> back_off;  // sleeps that many ns before a contended race is retried; null: does so
  std::function<void()> between;         // called before each batch of calls; the time it takes counts nowhere
  std::string lock_path;                 // one race at a time per device; empty: no lock
  std::atomic<bool>* cancel = nullptr;
};

enum class RaceOutcome {
  kBaseline,   // this runner is what the others were measured against
  kAccept,     // faster, beyond noise
  kReject,     // shown not to be faster by the threshold
  kUndecided,  // neither, at the last look or the limit
  kScreened,   // so much slower than the best that it was not raced
  kFailed,     // a call returned an error: see status
  kContended,  // the baseline itself was too unsteady: nothing may be concluded or stored
  kCancelled
};
std::string_view outcome_name(RaceOutcome outcome);

struct RaceRow {
  std::string name;
  RaceOutcome outcome = RaceOutcome::kUndecided;
  double ns = 0;                                // median of its samples under the hint; of the screen if it was not raced
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
};

// Races runners[1..] against the better of runners[0] (eager) and, if replay_of_eager is not 0, that runner, which has to win
// its own race first. `exhausted` if the lock is taken by another process, the status of runners[0] if it fails.
Result<RaceSheet> race(const std::vector<Runner>& runners, size_t replay_of_eager, const RaceOptions& options);

// Median time of one call after warming up, in ns.
Result<double> time_call(const Runner& runner, const RaceOptions& options);

}  // namespace keirin
