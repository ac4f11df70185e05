// SPDX-License-Identifier: Apache-2.0
//
// What watches a plan while it serves: a circuit breaker over failed runs, and a check of sampled calls against eager after the
// reply. It decides whether a call may use the plan and when the plan is revoked; the session does both. The invariant: a check
// never delays an answer and never touches the caller's tensors.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/base/services.h"
#include "core/host/guard/fork_count.h"

namespace keirin {

// Closed: calls pass. Open after kFailures within kWindow: none pass. Half-open when the wait is over: one call is let through;
// its success closes the breaker, its failure doubles the wait.
class CircuitBreaker {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr int kFailures = 3;
  static constexpr std::chrono::seconds kWindow{60}, kFirstWait{60}, kLongestWait{3600};

  bool admits(Time now) { return healthy() || admits_slowly(now); }
  bool admits() { return healthy() || admits_slowly(std::chrono::steady_clock::now()); }
  void succeeded() {
    if (!healthy()) close();
  }
  bool is_open() {
    const std::lock_guard lock(mutex_);
    return open_;
  }
  // Whether this failure opened it.
  bool failed(Time now);

 private:
  bool healthy() const { return !troubled_.load(std::memory_order_relaxed); }
  bool admits_slowly(Time now);
  void close();

  std::atomic<bool> troubled_{false};  // not closed: the only thing that a healthy call reads
  std::mutex mutex_;
  std::deque<Time> failures_;
  std::chrono::seconds wait_{kFirstWait};
  Time open_until_{};
  bool open_ = false, trying_ = false;
};

// What is counted of the calls that one choice answers: those of one plan, or of all plans of a range of sizes.
struct ServiceRecord {
  CircuitBreaker breaker;
  std::atomic<uint64_t> calls{0}, shadowed{0};
  std::atomic<bool> revoked{false};
};

// One plan's guard.
struct PlanGuard {
  using Tensors = std::vector<TensorRef>;
  std::shared_ptr<ServiceRecord> record = std::make_shared<ServiceRecord>();
  std::atomic<uint64_t> calls{0};             // that came to it, of a size of a range
  std::atomic<uint64_t> last_used{0};         // the number that the session gave its last call; of plans, the least goes first
  uint64_t sample_rate = 0, shadow_rate = 0;  // 0: never checked
  // What is wrong with the outputs of a call, in words; empty if nothing is, or if it could not be told.
  std::function<std::string(const Tensors& inputs, const Tensors& outputs)> check;
  std::function<void(const std::string& what)> revoke;

  // Whether this call is one of the first three, or the one that is taken of each sample_rate in a row.
  bool takes_sample() { return is_taken(record->calls.fetch_add(1, std::memory_order_relaxed), sample_rate); }
  // The same of calls that eager answered in the plan's place.
  bool takes_shadow() { return is_taken(record->shadowed.fetch_add(1, std::memory_order_relaxed), shadow_rate); }

 private:
  // Which one of a row is taken is as good as drawn: a plan that is wrong in every k-th call would never meet one at a fixed place.
  static bool is_taken(uint64_t n, uint64_t rate) {
    if (rate == 0 || n < 3) return rate > 0;
    const uint64_t row = n / rate;
    uint64_t x = row * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    return n - row * rate == x % rate;
  }
};

// Checks sampled calls on a thread of its own, one at a time. A sample that would have to wait behind many is dropped. The services
// must outlive it.
class CallChecker {
 public:
  ~CallChecker();
  // Copies what the caller may overwrite as soon as the answer is his.
  void submit(std::shared_ptr<PlanGuard> guard, const std::vector<TensorRef>& inputs, const std::vector<TensorRef>& outputs,
              TensorServices& services);
  // A call whose outputs are still to be made, by `answer` on the copies and on the thread here; `judged` is told there what was wrong with
  // them, empty: nothing, unless `answer` failed. False if the sample was dropped.
  using Answer = std::function<Result<std::vector<TensorRef>>(const std::vector<TensorRef>& inputs)>;
  bool submit(std::shared_ptr<PlanGuard> guard, const std::vector<TensorRef>& inputs, Answer answer,
              std::function<void(const std::string& wrong)> judged, TensorServices& services);
  // Waits until everything submitted is checked: for tests, and before a report is read.
  void drain();

 private:
  struct Sample {
    std::shared_ptr<PlanGuard> guard;
    std::vector<TensorRef> inputs, outputs;
    Answer answer = {};  // empty: the outputs are there
    std::function<void(const std::string& wrong)> judged = {};
  };
  struct Queue {
    std::mutex mutex;  // guards what follows
    std::condition_variable more, idle;
    std::deque<Sample> samples;
    bool busy = false, stop = false;
  };
  bool has_room();
  bool add(Sample sample, TensorServices& services);
  static void check(Sample& sample);
  static void work(Queue& queue, TensorServices& services);
  // The thread stayed in the process that was forked, perhaps with the lock: a copy checks nothing.
  bool in_forked_copy() const { return fork_count() != forks_; }

  const uint64_t forks_ = fork_count();
  std::unique_ptr<Queue> queue_ = std::make_unique<Queue>();
  // Started by the first sample. One thread and not one for each sample, because MKL remembers every thread that ever multiplied
  // matrices; without a team of OpenMP's, because with more of their threads than processors libgomp no longer spins, and every
  // parallel loop of the service would wait for threads to be woken: calls of a millisecond took twice as long.
  std::thread thread_;
};

}  // namespace keirin
