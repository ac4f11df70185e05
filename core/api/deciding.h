// SPDX-License-Identifier: Apache-2.0
//
// One decision in the making: what its stages share. core/api/decide.cc runs them in order: candidates.h builds plans, verification.h
// says which are right, region_trial.h which regions of them, contest.h which is fastest, kept_decision.h what stays for the next
// process. Internal to core/api; lives as long as one decision, on one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "core/api/candidates.h"
#include "core/api/known_run.h"
#include "core/api/trial.h"
#include "core/base/background.h"
#include "core/cache/ledger.h"
#include "core/tune/instructions.h"

namespace keirin {

// One way of answering the calls that are decided about.
struct Candidate {
  CandidateReport report;
  CallFn call;                 // empty: out
  CallFn own;                  // the same, its outputs not yet shared as eager's are: what a launch replay records, or has recorded
  BuiltPlan built;             // without a plan for eager and the replay of the graph
  int wrong_set = -1;          // of inputs, that it answered wrong; -1: none
  bool wrong_behind = false;   // right with the model's weights, which hide what it computes, and wrong with others
  std::map<size_t, std::string> hidden;  // outputs that no set of inputs made vary: that they are right shows nothing; and why
  bool by_regions = false;     // as far from fp64 as roundings explain: right if each of its regions is, by itself
  bool is_recording = false;   // another candidate's launches
  bool of_other_sizes = false; // what answers sizes of a range that are not checked: judged and never chosen (enter.h)
  bool baseline = false;       // eager and eager with launch replay: nothing to verify against but themselves

  bool is_plan() const { return built.plan != nullptr; }
};

struct Deciding {
  using Tensors = std::vector<TensorRef>;
  static constexpr int kInputSets = 3;  // the caller's, and drawn ones

  Deciding(Session::Impl& session, const Tensors& inputs);

  // One step of it: in the background, if it is asked for, on a thread of its own, so that it is found out again how much is to spare.
  // Whatever takes time is in one: the thread that waits for them gives way to nobody.
  template <class Fn>
  auto step(Fn&& fn) {
    if (!gives_way) return fn();
    if constexpr (std::is_void_v<decltype(fn())>) return run_in_background(fn);
    else return in_background(fn);
  }
  // The error with which a decision ends that nobody waits for any more; asked after each step that takes long.
  static Status go_on();
  void progress(const char* stage, double done);
  void stage(const char* name, double seconds) { report.stage_seconds.emplace_back(name, seconds); }

  bool inputs_share() const;                // with each other or with a weight
  CallGuard call_guard() const;             // of the calls that a plan for these inputs answers
  Result<Tensors> input_set(int set);       // of kInputSets
  // Whether an output of the plan may have other strides than eager's: those of eager steps are not known before they run.
  bool strides_may_differ(const Plan& plan) const;
  bool strides_may_differ(const Candidate& c) const { return !c.is_plan() || strides_may_differ(*c.built.plan); }
  CallFn in_eagers_forms(CallFn call, bool may_differ) { return with_forms(std::move(call), forms, may_differ, services, session.weights); }
  // The plan's calls as a caller sees them: both call and own of the candidate. The plan's eager steps call into `prepared`.
  void make_calls(Candidate& candidate);
  // An empty call is eager's, which needs no guard beyond the sizes.
  // `plan`: whose calls they are, as they are; null: they are made otherwise.
  void publish(CallFn call, std::shared_ptr<PlanGuard> guard, const std::shared_ptr<Plan>& plan = nullptr);

  Session::Impl& session;
  TensorServices& services;
  const std::optional<InstructionCount> count = InstructionCount::of_environment();  // what is compared, where times mean nothing
  bool gives_way;                      // not while it only takes over what an earlier process decided: that is over in a moment
  Tensors inputs, raced;               // the caller's, and what is timed: clones where the model writes its inputs
  std::vector<TensorSpec> specs;       // of the inputs
  std::shared_ptr<Prepared> prepared;  // null: the model runs as a whole in eager
  std::vector<Candidate> candidates;   // 0: eager
  ObservedRun seen;                    // eager's first call
  Trials trials{session, seen};
  OutputForms forms;                   // of eager's outputs
  bool sensitive = false;              // so is eager: nothing is shown by the model's answers alone
  std::shared_ptr<const SizeRange> range;  // whose choice this makes a plan of; null: it decides
  bool for_range = false;              // one of the sizes of ranges: kept by memory, not by number
  uint64_t hot_after = 0;              // Decision::hot_after
  bool keeps_decision = true;          // every candidate had its race, and none was disturbed
  size_t launch_replay = 0;            // eager with launch replay, 0: there is none
  std::optional<CacheKey> ledger_key;  // none: no cache, or a graph without bytes
  std::optional<LedgerRecord> ledger;  // what an earlier process decided, if that still holds
  std::optional<LedgerRecord> raced_with_others;  // the same of the graph with other weights, for which nothing was judged
  std::string race_disturbed;          // what others did to a part of its race at least; empty: nothing
  bool holds_for_now = false;          // a region was left to eager that may be compiled at the next try
  int64_t eager_process_bytes = 0;     // what a process that runs only eager holds between calls
  ModelReport report;
};

// Stages that core/api/decide.cc and core/api/enter.cc share.
// What eager shows, unless it is known, and the graph after the passes, if the model has one.
Status prepare(Deciding& d, std::optional<KnownRun> known);
// What such a call writes is reached by two names, which no plan and no recording expects, or it reads what no plan is given: nothing is
// decided for its like. Null: nothing of that kind.
const char* why_only_eager(const Deciding& d);
// The graph after the passes, op by op through LibTorch on dense slots: no code is generated.
void add_replay(Deciding& d);
// It has eager steps, and the options forbid them.
bool is_forbidden(const Deciding& d, const BuiltPlan& built);

double now_s();

// The process between calls: on the CPU as the kernel counts it; on a device the weights and what its context takes.
int64_t resident_bytes(const Session::Impl& session);

}  // namespace keirin
