// SPDX-License-Identifier: Apache-2.0
//
// The time line of a session that serves: calls of sizes that nothing was decided for are answered by eager at once,
// and this thread decides about them afterwards, one kind of call after another, giving way to whatever else wants the
// processor. With `compile` never it only takes over what earlier processes decided. A call hands on what it met and
// never waits: it takes a lock that is free, or leaves it to the next call. Internal to core/api.
//
// When it begins, and once more at the first size met, the thread looks whether an earlier process left ranges, and takes them over: the
// plans of the sizes that brought them about are made before anybody calls. Else the first size is decided by itself. With the second,
// what was decided is checked at more sizes, and ranges are made of what is found (core/api/size_ranges.h); a size that lies in one is
// entered: its plan is made here, of the range's choice, and nothing is decided. Whose calls have lasted as long as a decision takes is
// decided by itself after all: it may be recorded, and gets what is fastest at its sizes.
//
// A model whose calls may write state or draw random numbers is not decided here: deciding runs it, and puts back what
// the runs left, while other calls are under way, whose writes and draws would be lost. The reports say so;
// `Session::compile` still decides it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/api/met_call.h"
#include "core/api/met_sizes.h"
#include "core/api/session_impl.h"

namespace keirin {

class DecisionThread {
 public:
  // Of a session that is otherwise complete; it owns this.
  explicit DecisionThread(Session::Impl& session);
  // Makes the plans of the sizes that an earlier process met first, if it kept ranges: a first call that comes later finds them. Returns at
  // once. When the session is complete.
  void begin();
  // Tells the decision that is being made to end, and waits until it has.
  ~DecisionThread();
  // The same, and nothing is decided any more: what is met later is left to eager. Any thread but this one.
  void end();

  // Of a call that eager has just answered: these inputs are worth deciding about, if they are of a new kind. Copies
  // what is small; large inputs are drawn anew by the thread. `eager_ms`: how long that kept its caller; 0: not known. Any thread.
  void meet(const std::vector<TensorRef>& inputs, double eager_ms = 0);
  // Decides about a kind of call once more, after something that its decision was made with has changed. Before any call meets it.
  void decide_again(const MetCall& call);
  // The same after a decision that others disturbed, once the processors are idle. Any thread but this one.
  void decide_when_idle(const MetCall& call);
  // Decides by itself about a size whose plan a range made: it is called so often that this pays. Unless as many are kept as may be.
  void decide_hot(const std::vector<TensorRef>& inputs);
  // Learns what the graph is at sizes of this one's kind (enter.h). Under the session's compile_mutex.
  void learn(const Sizes& like);
  // Waits until each kind that was met was decided, or tried once; false if that takes longer than `most`. Any thread
  // but this one.
  bool settle(std::chrono::nanoseconds most);

 private:
  using Clock = std::chrono::steady_clock;
  struct Task {
    MetCall call;           // of a check: any call of those that brought it about
    int attempts = 0;
    Clock::time_point due = {};  // not before
    Sizes sizes = {};       // where they may lie in a range; of a call that is decided by itself: empty
    bool check = false;     // find out what answers which sizes
    bool kept = false;      // of no call: take over what is kept
    bool learn = false;     // of no call: what the graph is at sizes of this kind
    bool hot = false;        // a plan answers such calls
    bool when_idle = false;  // another try under load would tell as little
    bool counted = false;   // among those that are decided, should no range hold it
  };
  // The thread's and the callers', who may be a forked copy of the process: then nobody touches it any more.
  struct Queue {
    std::mutex mutex;  // guards what follows
    std::condition_variable more, idle;
    std::deque<Task> tasks;
    bool busy = false;
    std::atomic<bool> stop{false};
  };

  // Under met_mutex_. Whether a call of these sizes waits for a range, which it may bring about.
  bool waits_for_range(const Sizes& sizes, bool* bring_about);
  void add(Task task);
  void work();
  // The task that is due and waits longest. Not before one is; nothing where the thread is to end.
  std::unique_ptr<Task> next(std::unique_lock<std::mutex>& lock);
  // Has it wait for its next try.
  void put_back(std::unique_ptr<Task> task, Clock::time_point due);
  // Whether it has to be tried again, because others had the machine.
  bool decide(Task& task);
  // The same of the ranges.
  bool check_sizes(Task& task);
  Result<CheckedSizes> check_at(const Sizes& sizes, const Task& task);
  bool take_ranges_of_other_weights(const std::vector<Sizes>& met, const Task& task);
  // Ranges that an earlier process kept, and the plans of the sizes that it met first.
  void take_over_kept();
  // Looks once for ranges that an earlier process kept; `call`: one of those that they are for.
  void take_over_ranges(const MetCall& call);
  enum class Entered { kInNoRange, kDone, kToTryAgain };
  // Has the range in which its sizes lie, if there is one, answer them.
  Entered enter(const Task& task);
  // Of a call whose sizes turned out to lie in no range: whether it may be decided by itself.
  bool counts(const Task& task);
  void done_with(const Task& task);
  bool has_room_for_hot() const;
  bool is_paid(const Sizes& sizes, double eager_ms);
  void say_full(const std::vector<TensorSpec>& specs);
  static double growth_of(const ModelReport& met);
  // The report of the decision at these sizes, if there is one.
  std::optional<ModelReport> report_at(const Sizes& sizes) const;
  Result<std::vector<TensorRef>> inputs_of(const MetCall& call);

  Session::Impl& session_;
  const uint64_t forks_;
  std::string refused_;  // why nothing is decided beside calls; empty: it is
  const bool may_have_ranges_;
  std::mutex met_mutex_;
  MetSizes met_;                                   // under met_mutex_
  bool said_refused_ = false, said_full_ = false;  // under met_mutex_
  // Under met_mutex_: the first sizes that may lie in a range, the second ones, and those whose turn has not come.
  Sizes first_, second_;
  bool taken_over_ = false;                        // ranges that an earlier process kept; written by the thread
  std::set<Sizes> waiting_, left_;                 // and those that are in no range, and too many to be decided
  std::map<Sizes, uint64_t> unpaid_;               // calls of those that wait until their plan would have paid
  bool looked_ = false, lasting_ = true;           // the thread's: for kept ranges; whether the next process would find the same
  std::vector<CheckedSizes> checked_;              // the thread's
  std::unique_ptr<Queue> queue_ = std::make_unique<Queue>();
  std::thread thread_;  // started by the first task, under the queue's mutex
};

}  // namespace keirin
