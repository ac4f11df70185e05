// SPDX-License-Identifier: Apache-2.0
//
// The decision for one shape: which candidates there are, which of them are right, which of those is fastest beyond noise. Rule
// G1 holds here: compiled code is used only where it is verified, measured faster than the better of eager and eager with
// launch replay, and bounded in memory. Whatever fails on the way costs a line in the report, and eager answers.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <optional>
#include <type_traits>
#include <utility>

#include <unistd.h>

#include "abi/planted.h"
#include "core/api/candidates.h"
#include "core/api/repro.h"
#include "core/eager/replay.h"
#include "core/host/background.h"
#include "core/exec/ticks.h"
#include "core/cache/ledger.h"
#include "core/ir/bytes.h"
#include "core/tune/elements.h"
#include "core/tune/inputs.h"
#include "core/tune/race.h"
#include "core/tune/verify.h"

namespace keirin {
namespace {

constexpr int kInputSets = 3;

constexpr double kLeastGain = 0.02;

using Tensors = std::vector<TensorRef>;

// The reason code of a plan that could not be built.
const char* reason_of(const Status& status) {
  if (status.message().what.rfind("quarantined", 0) == 0) return "quarantined";
  if (status.code() == Code::k_timeout) return "deadline";
  return status.code() == Code::k_unsupported ? "unsupported" : "compile_failed";
}

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Candidate {
  CandidateReport report;
  CallFn call;
  std::shared_ptr<Plan> plan;  // null for eager and launch replays
  std::vector<std::string> refusals;
  int nodes_compiled = 0;
  bool baseline = false;       // eager and eager with launch replay: nothing to verify against but themselves
};

// What a plan answered wrong, where the user wants it kept: into a folder. A sentence about it, or nothing.
std::string keep_wrong(Session::Impl& s, const Prepared& prepared, std::string plan, const Tensors& inputs, const std::string& reason) {
  std::string parent = s.options.repro_dir;
  if (parent.empty())
    if (const char* named = secure_getenv("KEIRIN_REPRO")) parent = named;
  if (parent.empty()) return {};
  if (const size_t at = plan.find('+'); at != std::string::npos) plan.resize(at);  // how it is launched is another matter
  const ReproCase c{s.name,         plan,   reason,   s.options.disabled_passes, s.options.numerics, s.options.error_budget,
                    s.device,       prepared.captured.graph, inputs, prepared.constants};
  const Result<std::string> folder = write_repro(parent, c, s.runtime.tensors());
  return folder.ok() ? "; `keirin repro " + *folder + "` repeats it" : "; it could not be kept: " + folder.status().message().what;
}

// Everything that lives as long as one decision.
class Decider {
 public:
  Decider(Session::Impl& session, const Tensors& inputs) : s_(session), services_(session.runtime.tensors()), inputs_(inputs) {
    report_.model = s_.name;
    report_.device = device_name(s_.device);
    report_.mode = s_.options.mode;
    report_.threads = services_.num_threads();
    for (const TensorRef& t : inputs)
      specs_.push_back({t->dtype(), {t->sizes(), t->sizes() + t->rank()}, {t->strides(), t->strides() + t->rank()}, t->device()});
  }

  Result<ModelReport> run();

 private:
  // One step of it: in the background, if it is asked for, on a thread of its own, so that each finds out anew how much is to spare.
  // Whatever takes time is in one: the thread that waits for them gives way to nobody.
  template <class Fn>
  auto step(Fn&& fn) {
    if (!s_.options.background) return fn();
    if constexpr (std::is_void_v<decltype(fn())>) return run_in_background(fn);
    else return in_background(fn);
  }
  Status prepare();
  void progress(const char* stage, double done) {
    if (!s_.options.progress) return;
    try {
      s_.options.progress(s_.name + ": " + stage, done, 0);
    } catch (...) {  // a user's callback does not throw into the core
    }
  }
  void stage(const char* name, double seconds) { report_.stage_seconds.emplace_back(name, seconds); }
  Status save_state();
  Status restore_state();
  Result<Tensors> own_inputs(const Tensors& inputs);
  CacheKey ledger_key(const Hash& graph) const;
  std::map<std::string, std::string> fingerprints() const;
  void read_ledger_record();
  bool start_warm();
  void write_ledger_record();
  void add_replay();
  void add_plan(Result<BuiltPlan> built, const std::string& name);
  void build_candidates();
  void add_launch_replays();
  Result<bool> answers_alike(const CallFn& recorded, const CallFn& plain);
  Status verify();
  Status verify_set(int set, const Tensors& inputs);
  Result<Tensors> input_set(int set);
  int64_t measure_peak(const Candidate& candidate);
  int64_t resident_bytes() const;
  void measure_memory();
  Status race_all();
  void choose(size_t winner);
  std::shared_ptr<PlanGuard> make_guard(const std::string& name, const std::string& plugin);
  void finish();
  void time_steps(Candidate& candidate);
  double eager_share() const;

  Session::Impl& s_;
  TensorServices& services_;
  Tensors inputs_, raced_;             // the caller's, and what is timed: clones where the model writes its inputs
  std::vector<TensorSpec> specs_;
  std::shared_ptr<Prepared> prepared_;
  std::vector<Candidate> candidates_;  // 0: eager
  std::vector<std::pair<TensorRef, TensorRef>> state_;  // tensor, its content before
  size_t launch_replay_ = 0;           // eager with launch replay, 0: there is none
  std::optional<CacheKey> ledger_key_;     // none: no cache, or a graph without bytes
  std::optional<LedgerRecord> ledger_;     // what an earlier process decided, if that still holds
  int64_t eager_process_bytes_ = 0;    // what a process that runs only eager holds between calls
  ModelReport report_;
};

// The process between calls: on the CPU as the kernel counts it; on a device the weights and what its context takes.
int64_t Decider::resident_bytes() const {
  constexpr int64_t kDeviceContextBytes = int64_t{512} << 20;
  if (s_.device.kind == Device::kCpu) {
    int64_t pages = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> pages >> resident;
    return resident * sysconf(_SC_PAGE_SIZE);
  }
  int64_t bytes = kDeviceContextBytes;
  for (size_t i = 0; i < s_.weights.size(); ++i) bytes += s_.weights[i].tensor->storage_bytes();
  return bytes;
}

// What the model writes is cloned, so that verifying and racing leave no mark.
Status Decider::save_state() {
  if (!s_.eager->writes()) return {};
  for (size_t i = 0; i < s_.weights.size(); ++i) {
    if (prepared_ && prepared_->captured.graph.values.size()) {
      bool is_state = false;
      for (const Value& value : prepared_->captured.graph.values)
        is_state |= value.kind == ValueKind::kState && value.index == i;
      if (!is_state) continue;
    }
    KRN_TRY_LET(TensorRef copy, services_.clone(s_.weights[i].tensor));
    state_.emplace_back(s_.weights[i].tensor, std::move(copy));
  }
  return {};
}

Status Decider::restore_state() {
  for (const auto& [tensor, content] : state_) KRN_TRY(services_.copy(tensor, content));
  return {};
}

// Clones where the model may write its inputs.
Result<Tensors> Decider::own_inputs(const Tensors& inputs) {
  if (!s_.eager->writes()) return inputs;
  Tensors own;
  for (const TensorRef& input : inputs) {
    KRN_TRY_LET(TensorRef copy, services_.clone(input));
    own.push_back(std::move(copy));
  }
  return own;
}

void Decider::add_plan(Result<BuiltPlan> built, const std::string& name) {
  // Nor may the race then prefer a plan with eager steps to one without.
  if (built.ok() && s_.options.fallback == Fallback::kForbid && built->nodes_compiled < report_.nodes) {
    std::string why = std::to_string(report_.nodes - built->nodes_compiled) + " operators would run eagerly, which is forbidden";
    if (!built->refusals.empty()) why += ": " + built->refusals.front();
    built = Status(Code::k_unsupported, std::move(why));
  }
  Candidate candidate;
  candidate.report.name = name;
  if (!built.ok()) {
    candidate.report.reason = reason_of(built.status());
    candidate.report.note = built.status().message().what;
  } else {
    candidate.report.name = built->name;
    candidate.report.plugin = built->plugin;
    candidate.report.compile_seconds = built->seconds;
    // Loading is not compiling: what it cost when it was compiled is in the ledger.
    if (built->from_cache && ledger_)
      for (const LedgerCandidate& known : ledger_->candidates)
        if (known.name == built->name) candidate.report.compile_seconds = known.compile_seconds;
    candidate.report.reason = "pending";
    candidate.report.peak_bytes = built->plan->arena_bytes() + built->constant_bytes;
    candidate.plan = built->plan;
    candidate.refusals = std::move(built->refusals);
    // Said whatever is chosen: nothing else tells that the machine's or the plugin's fault made this candidate slower.
    for (const std::string& region : built->lost) report_.reasons.push_back(built->name + " without " + region);
    candidate.nodes_compiled = built->nodes_compiled;
    report_.kernels_generated += static_cast<int>(built->kernels_generated);
    // The eager steps call into `prepared`: it lives as long as the plan.
    candidate.call = [plan = built->plan, prepared = prepared_](const Tensors& inputs) { return plan->run(inputs); };
  }
  candidates_.push_back(std::move(candidate));
}

// The graph after the passes, op by op through LibTorch on dense slots: no code is generated.
void Decider::add_replay() {
  const double start = now_s();
  Candidate candidate;
  candidate.report.name = "replay";
  auto replay = GraphReplay::make(prepared_->graph, prepared_->captured.calls, prepared_->constants, {s_.device, std::nullopt});
  if (!replay.ok()) {
    candidate.report.reason = "unsupported";
    candidate.report.note = replay.status().message().what;
  } else {
    std::shared_ptr<GraphReplay> shared = std::move(*replay);
    candidate.report.reason = "pending";
    candidate.report.compile_seconds = now_s() - start;
    candidate.call = [shared](const Tensors& inputs) { return shared->run(inputs); };
  }
  candidates_.push_back(std::move(candidate));
}

void Decider::build_candidates() {
  add_replay();
  progress("compile", 0.2);
  build_plans(s_, *prepared_, [this](Result<BuiltPlan> built, const std::string& name) { add_plan(std::move(built), name); });
}

// Whether a recording answers inputs that it was not made with as the call it was made of does. The candidate was verified: what is
// asked is that each call's inputs and outputs are bound, and the beginning of an output shows that. Random numbers differ by right.
Result<bool> Decider::answers_alike(const CallFn& recorded, const CallFn& plain) {
  constexpr int64_t kMost = 1 << 16;
  KRN_TRY_LET(const Tensors inputs, input_set(1));
  const auto answer = [&](const CallFn& call) -> Result<Tensors> {
    KRN_TRY_LET(Tensors own, own_inputs(inputs));
    KRN_TRY_LET(Tensors outputs, call(own));
    KRN_TRY(restore_state());
    for (TensorRef& t : outputs)
      if (t && t->storage_bytes() >= kMost * dtype_bytes(t->dtype()) && num_elements(*t) > kMost) {
        KRN_TRY_LET(t, services_.wrap({t->dtype(), {kMost}, {1}, t->device()}, t->data(), t));
      }
    return outputs;
  };
  JudgeOptions options;
  options.error_budget = 1e-2;
  KRN_TRY_LET(const Tensors once, answer(plain));
  KRN_TRY_LET(const Tensors replayed, answer(recorded));
  KRN_TRY_LET(const Judgement judgement, judge(once, once, replayed, services_, options));
  if (judgement.right) return true;
  KRN_TRY_LET(const Tensors twice, answer(plain));
  KRN_TRY_LET(const Judgement repeats, judge(once, once, twice, services_, options));
  return !repeats.right;
}

void Decider::add_launch_replays() {
  if (s_.device.kind == Device::kCpu) return;
  const size_t count = candidates_.size();
  for (size_t i = 0; i < count; ++i) {
    if (!candidates_[i].call || (i > 0 && !candidates_[i].report.verified)) continue;
    Candidate recorded;
    recorded.report = candidates_[i].report;
    recorded.report.name = candidates_[i].report.name + "+launch_replay";
    recorded.plan = candidates_[i].plan;
    recorded.refusals = candidates_[i].refusals;
    recorded.nodes_compiled = candidates_[i].nodes_compiled;
    auto replay = LaunchReplay::record(candidates_[i].call, inputs_, services_, s_.device);
    if (!replay.ok()) {
      recorded.report.reason = "unsupported";
      recorded.report.note = replay.status().message().what;
      recorded.report.verified = false;
    } else {
      std::shared_ptr<LaunchReplay> shared = std::move(*replay);
      // The recording reads the plan's arena and weights: it keeps the call alive.
      const CallFn call = [shared, keep = candidates_[i].call](const Tensors& inputs) { return shared->run(inputs); };
      const Result<bool> alike = prepared_ ? answers_alike(call, candidates_[i].call) : Result<bool>(true);
      if (!alike.ok() || !*alike) {
        recorded.report.reason = "wrong_result";
        recorded.report.note = alike.ok() ? "the recording answers new inputs in another way than the call that was recorded" : alike.status().message().what;
        recorded.report.verified = false;
      } else {
        recorded.call = call;
        recorded.report.reason = "pending";
        recorded.baseline = i == 0;
        if (i == 0) launch_replay_ = candidates_.size();
      }
    }
    candidates_.push_back(std::move(recorded));
  }
}

Result<Tensors> Decider::input_set(int set) {
  if (set == 0) return own_inputs(inputs_);
  if (!s_.rules) return make_inputs(prepared_->captured.graph, services_, {static_cast<uint64_t>(set), static_cast<uint32_t>(set), s_.device, {}});
  Tensors drawn;
  for (size_t i = 0; i < specs_.size(); ++i) {
    TensorSpec spec = specs_[i];
    spec.device = {};
    KRN_TRY_LET(TensorRef tensor, draw(services_, spec, s_.rules->inputs[i], s_.rules->seed + 1000 + set, "input" + std::to_string(i)));
    KRN_TRY_LET(tensor, services_.to_device(tensor, s_.device));
    drawn.push_back(std::move(tensor));
  }
  return drawn;
}

Status Decider::verify_set(int set, const Tensors& inputs) {
  // The referee first: it may not see what eager writes into inputs and state.
  KRN_TRY_LET(Tensors referee, evaluate(prepared_->captured.graph, prepared_->captured.calls, inputs, prepared_->constants,
                                             {s_.device, DType::k_f64}));
  KRN_TRY_LET(Tensors eager_inputs, own_inputs(inputs));
  KRN_TRY_LET(Tensors eager, s_.eager->run(eager_inputs));
  referee.resize(std::min(referee.size(), eager.size()));
  const JudgeOptions judging = judge_options(prepared_->captured.graph, s_.options.numerics, s_.options.error_budget);
  KRN_TRY(restore_state());
  for (Candidate& candidate : candidates_) {
    if (candidate.baseline || !candidate.call || (set > 0 && !candidate.report.verified)) continue;
    candidate.report.verified = false;
    pass_gate();
    KRN_TRY_LET(Tensors own, own_inputs(inputs));
    Result<Tensors> outputs = candidate.call(own);
    KRN_TRY(restore_state());
    if (!outputs.ok()) {
      candidate.report.reason = "compile_failed";
      candidate.report.note = "set " + std::to_string(set) + ": " + outputs.status().text();
      continue;
    }
    KRN_TRY_LET(Judgement judgement, judge(referee, eager, *outputs, services_, judging));
    candidate.report.verified = judgement.verified;
    candidate.report.max_error = std::max(candidate.report.max_error, judgement.max_error);
    candidate.report.eager_error = std::max(candidate.report.eager_error, judgement.eager_error);
    if (!judgement.verified) {
      candidate.report.reason = "wrong_result";
      candidate.report.note = "set " + std::to_string(set) + ": " + judgement.reason;
      if (!judgement.right && candidate.plan) candidate.report.note += keep_wrong(s_, *prepared_, candidate.report.name, inputs, judgement.reason);
    }
    candidates_[0].report.max_error = candidates_[0].report.eager_error =
        std::max(candidates_[0].report.eager_error, judgement.eager_error);
  }
  return {};
}

Status Decider::verify() {
  for (int set = 0; set < kInputSets; ++set) {
    progress("verify", (set + 0.5) / kInputSets);
    KRN_TRY(step([&]() -> Status {
      KRN_TRY_LET(const Tensors inputs, input_set(set));
      return verify_set(set, inputs);
    }));
  }
  return {};
}

int64_t Decider::measure_peak(const Candidate& candidate) {
  auto inputs = own_inputs(inputs_);
  if (!inputs.ok()) return 0;
  services_.reset_peak(s_.device);
  const int64_t before = services_.peak_bytes(s_.device);
  auto outputs = candidate.call(*inputs);
  const int64_t peak = services_.peak_bytes(s_.device) - before;
  return outputs.ok() ? std::max<int64_t>(peak, 0) : 0;
}

void Decider::measure_memory() {
  candidates_[0].report.peak_bytes = measure_peak(candidates_[0]);
  const int64_t eager_process = eager_process_bytes_ + candidates_[0].report.peak_bytes;
  const double allowed = (1 + s_.options.memory_limit) * static_cast<double>(eager_process);
  for (size_t i = 1; i < candidates_.size(); ++i) {
    Candidate& candidate = candidates_[i];
    if (!candidate.call || !candidate.report.verified) continue;
    candidate.report.peak_bytes += measure_peak(candidate);
    if (static_cast<double>(eager_process_bytes_ + candidate.report.peak_bytes) > allowed) {
      candidate.report.reason = "memory";
      candidate.report.note = "the process would need " + std::to_string((eager_process_bytes_ + candidate.report.peak_bytes) >> 20) +
                              " MiB, an eager one " + std::to_string(eager_process >> 20) + " MiB";
      candidate.call = nullptr;
    }
  }
  (void)restore_state();
}

Status Decider::race_all() {
  KRN_TRY_LET(raced_, own_inputs(inputs_));
  std::vector<Runner> runners;
  std::vector<size_t> of_runner;
  size_t replay_runner = 0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    Candidate& candidate = candidates_[i];
    if (!candidate.call || (i > 0 && !candidate.report.verified && !candidate.baseline)) continue;
    if (i == launch_replay_ && i > 0) replay_runner = runners.size();
    runners.push_back({candidate.report.name, [this, i]() -> Status {
                         Result<Tensors> outputs = candidates_[i].call(raced_);
                         return outputs.ok() ? Status() : outputs.status();
                       }, candidate.report.peak_bytes});
    of_runner.push_back(i);
  }
  RaceOptions options;
  options.threshold = kLeastGain;
  options.limit_ns = static_cast<uint64_t>(s_.options.race_seconds * 1e9);
  if (s_.device.kind != Device::kCpu) options.wait = [this] { return services_.synchronize(s_.device); };
  if (Cache* cache = s_.runtime.cache(); cache && cache->usable()) options.lock_path = cache->dir() + "/lock/race-" + device_name(s_.device);
  options.between = pass_gate;
  progress("race", 0.5);
  KRN_TRY_LET(RaceSheet sheet, race(runners, replay_runner, options));
  for (size_t r = 0; r < sheet.rows.size(); ++r) {
    const RaceRow& row = sheet.rows[r];
    CandidateReport& report = candidates_[of_runner[r]].report;
    report.milliseconds = row.ns / 1e6;
    report.gain = row.gain, report.gain_low = row.gain_low, report.gain_high = row.gain_high;
    report.blocks = row.blocks;
    switch (row.outcome) {
      case RaceOutcome::kBaseline: report.reason = "baseline"; break;
      case RaceOutcome::kAccept: report.reason = "faster"; break;
      case RaceOutcome::kReject: report.reason = row.gain < 1 ? "slower" : "inside_noise"; break;
      case RaceOutcome::kScreened: report.reason = "slower"; break;
      case RaceOutcome::kFailed: report.reason = "compile_failed"; break;
      default: report.reason = "inside_noise"; break;
    }
    report.note = row.note;
    if (report.reason == "compile_failed") report.note = row.status.message().what;
  }
  KRN_TRY(restore_state());
  size_t winner = KRN_PLANTED(winner_of_dropped) ? sheet.winner : of_runner[sheet.winner];
  if (s_.options.force == "eager") winner = 0;
  if (s_.options.force == "compiled")
    for (size_t i = 1; i < candidates_.size(); ++i)
      if (candidates_[i].report.verified && !candidates_[i].report.plugin.empty() &&
          (candidates_[winner].report.plugin.empty() || candidates_[i].report.milliseconds < candidates_[winner].report.milliseconds))
        winner = i;
  if (!s_.options.force.empty()) candidates_[winner].report.reason = "forced";
  report_.eager_replay_ms = replay_runner ? candidates_[launch_replay_].report.milliseconds : 0;
  choose(winner);
  return {};
}

// Microseconds per step of a plan: medians over a few timed runs.
void Decider::time_steps(Candidate& candidate) {
  if (!candidate.plan) return;
  constexpr int kRuns = 5;
  std::vector<std::vector<double>> runs;
  std::vector<double> overheads;
  for (int i = 0; i < kRuns; ++i) {
    std::vector<double> step_us;
    const uint64_t start = ticks();
    const Result<Tensors> outputs = candidate.plan->run_timed(raced_, step_us);  // freeing them is the caller's time
    if (!outputs.ok()) return;
    overheads.push_back(static_cast<double>(ticks() - start) * microseconds_per_tick() - std::accumulate(step_us.begin(), step_us.end(), 0.0));
    runs.push_back(std::move(step_us));
  }
  (void)restore_state();
  std::nth_element(overheads.begin(), overheads.begin() + kRuns / 2, overheads.end());
  report_.call_overhead_us = overheads[kRuns / 2];
  for (size_t s = 0; s < candidate.plan->steps().size(); ++s) {
    const PlanStep& step = candidate.plan->steps()[s];
    std::vector<double> values;
    for (const auto& run : runs) values.push_back(run[s]);
    std::nth_element(values.begin(), values.begin() + kRuns / 2, values.end());
    report_.steps.push_back({step.name, step.executable ? candidate.report.plugin : "eager", step.num_ops, values[kRuns / 2],
                             step.executable ? "" : "unsupported", step.note});
  }
}

// Of the steps that were timed.
double Decider::eager_share() const {
  double eager = 0, all = 0;
  for (const StepReport& step : report_.steps) {
    all += step.microseconds;
    if (step.choice == "eager") eager += step.microseconds;
  }
  return all > 0 ? eager / all : 0;
}

void Decider::choose(size_t winner) {
  Candidate& chosen = candidates_[winner];
  report_.chosen = chosen.report.name;
  report_.chosen_ms = chosen.report.milliseconds;
  report_.max_error = chosen.report.max_error;
  report_.eager_error = candidates_[0].report.eager_error;
  report_.verified = winner == 0 || chosen.report.verified || chosen.baseline;
  if (winner > 0 && chosen.report.gain > 0 && !chosen.baseline) {
    report_.speedup = chosen.report.gain, report_.speedup_low = chosen.report.gain_low, report_.speedup_high = chosen.report.gain_high;
  }
  auto decision = std::make_shared<Decision>();
  decision->inputs = specs_;
  if (winner > 0) {
    decision->call = chosen.call;
    decision->guard = make_guard(chosen.report.name, chosen.report.plugin);
  }
  s_.publish(std::move(decision));
}

// What is compared in service is what was compared before: the judge's rule, with the captured graph in fp64 as referee. A model
// that writes its state or inputs is not compared: a second run would write them again.
std::shared_ptr<PlanGuard> Decider::make_guard(const std::string& name, const std::string& plugin) {
  auto guard = std::make_shared<PlanGuard>();
  if (s_.eager->writes() || !prepared_ || !s_.options.verify) return guard;
  guard->sample_rate = s_.options.sample_rate;
  guard->check = [&s = s_, prepared = prepared_, name](const Tensors& inputs, const Tensors& outputs) -> std::string {
    TensorServices& services = s.runtime.tensors();
    (void)services.synchronize(s.device);  // the answer was enqueued on the caller's stream
    auto referee = evaluate(prepared->captured.graph, prepared->captured.calls, inputs, prepared->constants, {s.device, DType::k_f64});
    auto eager = s.eager->run(inputs);
    if (!referee.ok() || !eager.ok()) return {};
    referee->resize(std::min(referee->size(), eager->size()));
    auto judgement = judge(*referee, *eager, outputs, services,
                           judge_options(prepared->captured.graph, s.options.numerics, s.options.error_budget));
    if (!judgement.ok() || judgement->right) return {};
    return judgement->reason + keep_wrong(s, *prepared, name, inputs, judgement->reason);
  };
  PluginDevice* device = nullptr;
  for (PluginDevice* each : s_.runtime.plugins().devices())
    if (each->plugin_name() == plugin && each->torch_device() == s_.device) device = each;
  auto bytes = write_region(prepared_->graph);
  const Hash graph = bytes.ok() ? bytes->hash : Hash{};
  guard->revoke = [&s = s_, specs = specs_, name, device, graph](const std::string& what) {
    s.revoke(specs, name + " answered wrong in service: " + what);
    // The graph as a whole is what the plugin claims next time: it is not given it again.
    if (device) device->quarantine(graph, "answered wrong in service");
  };
  return guard;
}

void Decider::finish() {
  const Candidate* best = nullptr;  // the fastest compiled plan, chosen or not
  for (const Candidate& candidate : candidates_)
    if (!candidate.report.plugin.empty() && candidate.report.milliseconds > 0 &&
        (!best || candidate.report.name == report_.chosen ||
         (best->report.name != report_.chosen && candidate.report.milliseconds < best->report.milliseconds)))
      best = &candidate;
  report_.eager_ms = candidates_[0].report.milliseconds;
  report_.eager_peak_bytes = candidates_[0].report.peak_bytes;
  report_.peak_bytes = report_.eager_peak_bytes;
  for (const Candidate& candidate : candidates_) {
    if (candidate.report.name == "replay" && report_.eager_replay_ms == 0) report_.eager_replay_ms = candidate.report.milliseconds;
    if (candidate.report.name == report_.chosen) report_.peak_bytes = candidate.report.peak_bytes;
  }
  double build_seconds = 0;
  for (const auto& [name, seconds] : report_.stage_seconds)
    if (name == "capture" || name == "passes") build_seconds += seconds;
  if (best) {
    report_.plugin = best->report.plugin;
    report_.compiled_ms = best->report.milliseconds;
    // A later cut finds its kernels generated already: what it would have cost alone includes the first one's.
    double generated = 0;
    for (const Candidate& candidate : candidates_)
      if (candidate.report.plugin == best->report.plugin) generated = std::max(generated, candidate.report.compile_seconds);
    report_.compile_seconds = build_seconds + std::max(generated, best->report.compile_seconds);
    report_.nodes_compiled = best->nodes_compiled;
    const double saved = (report_.eager_ms - report_.chosen_ms) / 1e3;
    if (report_.chosen == best->report.name && saved > 0)
      report_.pays_back_after_calls = static_cast<int64_t>(std::ceil(report_.compile_seconds / saved));
    if (report_.chosen != best->report.name) report_.reasons.push_back(best->report.name + " " + best->report.reason + (best->report.note.empty() ? "" : ": " + best->report.note));
    for (const std::string& refusal : best->refusals) report_.reasons.push_back("eager: " + refusal);
    for (Candidate& candidate : candidates_)
      if (&candidate == best) time_steps(candidate);
  }
  report_.eager_share = best && best->report.name == report_.chosen ? eager_share() : 1;
  for (const Candidate& candidate : candidates_) {
    if (!best && (candidate.report.reason == "unsupported" || candidate.report.reason == "compile_failed"))
      report_.reasons.push_back(candidate.report.name + ": " + candidate.report.note);
    if (candidate.report.reason == "wrong_result") report_.reasons.push_back(candidate.report.name + " wrong_result: " + candidate.report.note);
    report_.candidates.push_back(candidate.report);
  }
}

std::map<std::string, std::string> Decider::fingerprints() const {
  std::map<std::string, std::string> out = {{"torch", KEIRIN_TORCH_VERSION},
                                            {"threads", std::to_string(services_.num_threads())},
                                            {"file", s_.file_stamp}};
  for (PluginDevice* device : s_.runtime.plugins().devices())
    if (device->torch_device() == s_.device)
      out["plugin " + device->plugin_name()] = device->plugin_build_id() + " " + device->arch() + " " + device->fingerprint();
  return out;
}

CacheKey Decider::ledger_key(const Hash& graph) const {
  CacheKey key;
  key.add("what", "ledger 1").add("graph", hex(graph)).add("device", device_name(s_.device)).add("mode", s_.options.mode);
  if (!KRN_PLANTED(ledger_without_numerics)) key.add("numerics", static_cast<int64_t>(s_.options.numerics));
  if (s_.options.numerics == Numerics::kFast) key.add("error_budget_e-9", static_cast<int64_t>(s_.options.error_budget * 1e9));
  key.add("fallback", static_cast<int64_t>(s_.options.fallback));  // a plan with eager steps is no candidate where they are forbidden
  key.add("race_ms", static_cast<int64_t>(s_.options.race_seconds * 1e3));  // what a longer race would show is not known
  key.add("tune_budget_ms", static_cast<int64_t>(s_.options.budget_seconds * 1e3));
  key.add("memory_limit_percent", static_cast<int64_t>(s_.options.memory_limit * 100));
  if (s_.runtime.runs_in_worker() && s_.device.kind == Device::kCpu) key.add("run_in", "worker");
  for (const std::string& name : s_.options.plugins) key.add("only plugin " + name, "yes");
  for (const std::string& name : s_.options.disabled_passes) key.add("without pass " + name, "yes");
  return key;
}

void Decider::read_ledger_record() {
  Cache* cache = s_.runtime.cache();
  if (!cache || !cache->usable() || !s_.options.verify || !s_.options.force.empty()) return;
  auto bytes = write_region(prepared_->graph);
  if (!bytes.ok()) return;
  ledger_key_ = ledger_key(bytes->hash);
  std::string stale;
  ledger_ = read_ledger(*cache, *ledger_key_, fingerprints(), &stale);
}

// Loads the plan that an earlier process chose. Whether its decision is taken over, or only the time of loading noted, is the
// caller's wish; `false` where the race has to run.
bool Decider::start_warm() {
  if (!ledger_) return false;
  const double start = now_s();
  BuiltPlan built;
  std::shared_ptr<const Decision> decision;
  auto chosen = std::make_shared<Decision>();
  chosen->inputs = specs_;
  constexpr std::string_view kRecorded = "+launch_replay";
  const bool recorded = ledger_->choice.ends_with(kRecorded);
  const std::string choice = ledger_->choice.substr(0, ledger_->choice.size() - (recorded ? kRecorded.size() : 0));
  for (PluginDevice* device : s_.runtime.plugins().devices())
    for (Cut cut : {Cut::kAll, Cut::kNoAnchors, Cut::kAnchorsOnly})
      for (uint32_t k : {0u, 1u})
        if (device->torch_device() == s_.device && plan_name(*device, cut, k) == choice && !decision) {
          auto plan = build_plan(s_, *prepared_, *device, cut, k);
          if (!plan.ok() || !plan->lost.empty()) return false;  // not what was measured then
          built = std::move(*plan);
          chosen->call = [plan = built.plan, prepared = prepared_](const Tensors& inputs) { return plan->run(inputs); };
          chosen->guard = make_guard(ledger_->choice, built.plugin);
          decision = chosen;
        }
  if (choice == "eager") decision = chosen;
  if (!decision) return false;  // a replay: cheap to make again, but raced then
  if (recorded) {
    if (!chosen->call) {
      chosen->call = [&s = s_](const Tensors& inputs) { return s.eager->run(inputs); };
      chosen->guard = make_guard(ledger_->choice, "");
    }
    auto replay = LaunchReplay::record(chosen->call, inputs_, services_, s_.device);
    if (!restore_state().ok() || !replay.ok()) return false;
    // The recording reads the plan's arena and weights: it keeps the call alive.
    chosen->call = [shared = std::shared_ptr<LaunchReplay>(std::move(*replay)), keep = chosen->call](const Tensors& inputs) { return shared->run(inputs); };
  }
  if (!built.plan || built.from_cache) {
    report_.warm_start_seconds = now_s() - start;
    for (const auto& [name, seconds] : report_.stage_seconds) report_.warm_start_seconds += seconds;
  }
  if (s_.options.measure_again) return false;
  report_.chosen = ledger_->choice;
  report_.plugin = built.plugin;
  report_.nodes_compiled = built.nodes_compiled;
  report_.kernels_generated = static_cast<int>(built.kernels_generated);
  report_.pays_back_after_calls = ledger_->pays_back_after_calls;
  report_.eager_share = ledger_->eager_share;
  for (const LedgerCandidate& known : ledger_->candidates) {
    CandidateReport report{known.name, "", known.reason, known.note, known.verified, known.max_error, known.eager_error,
                           known.milliseconds, known.gain, known.gain_low, known.gain_high, known.blocks, known.compile_seconds,
                           known.peak_bytes};
    if (known.name == "eager") report_.eager_ms = known.milliseconds, report_.eager_peak_bytes = known.peak_bytes, report_.eager_error = known.eager_error;
    if (known.name == ledger_->choice) {
      report_.chosen_ms = known.milliseconds, report_.peak_bytes = known.peak_bytes;
      report_.verified = known.verified, report_.max_error = known.max_error;
      if (known.gain > 0) report_.speedup = known.gain, report_.speedup_low = known.gain_low, report_.speedup_high = known.gain_high;
      if (built.plan) report_.compiled_ms = known.milliseconds, report_.compile_seconds = known.compile_seconds;
    }
    report_.candidates.push_back(std::move(report));
  }
  report_.reasons.push_back("decided by an earlier process; bench measures again");
  for (const std::string& refusal : built.refusals) report_.reasons.push_back("eager: " + refusal);
  s_.publish(std::move(decision));
  return true;
}

void Decider::write_ledger_record() {
  if (!ledger_key_) return;
  LedgerRecord record;
  record.choice = report_.chosen;
  record.fingerprints = fingerprints();
  record.pays_back_after_calls = report_.pays_back_after_calls;
  record.eager_share = report_.eager_share;
  for (const Candidate& candidate : candidates_) {
    const CandidateReport& r = candidate.report;
    record.candidates.push_back({r.name, r.reason, r.note, r.verified, r.gain, r.gain_low, r.gain_high, r.blocks, r.milliseconds,
                                 r.max_error, r.eager_error, r.compile_seconds, r.peak_bytes, {}});
  }
  publish_ledger(*s_.runtime.cache(), *ledger_key_, record);
}

// Eager's first call, and the graph after the passes, if the model has one.
Status Decider::prepare() {
  Result<Prepared> captured = capture(s_, specs_);
  if (captured.ok()) prepared_ = std::make_shared<Prepared>(std::move(*captured));
  KRN_TRY(save_state());
  // Eager first: its error is the caller's answer, and nothing else is tried.
  KRN_TRY_LET(Tensors own, own_inputs(inputs_));
  KRN_TRY_LET(const Tensors first, candidates_[0].call(own));
  KRN_TRY(restore_state());
  eager_process_bytes_ = resident_bytes();
  if (const Status status = captured.ok() ? optimise(s_, *prepared_, first) : captured.status(); !status.ok()) {
    prepared_.reset();
    report_.reasons.push_back("the model runs as a whole in eager: " + status.message().what);
    return {};
  }
  report_.stage_seconds = prepared_->stage_seconds;
  report_.nodes = static_cast<int>(prepared_->graph.ops.size());
  for (const Op& op : prepared_->graph.ops) report_.nodes_opaque += op.code == OpCode::kOpaque;
  read_ledger_record();
  return {};
}

Result<ModelReport> Decider::run() {
  Candidate eager;
  eager.report.name = "eager";
  eager.report.verified = true;
  eager.baseline = true;
  eager.call = [this](const Tensors& inputs) { return s_.eager->run(inputs); };
  candidates_.push_back(std::move(eager));
  KRN_TRY(step([&] { return prepare(); }));
  if (prepared_) {
    if (step([&] { return start_warm(); })) return report_;
    double start = now_s();
    step([&] { build_candidates(); });
    stage("compile", now_s() - start);
    start = now_s();
    if (s_.options.verify) {
      // A model that cannot be refereed is not compiled: that is a reason and not an error.
      if (Status status = verify(); !status.ok()) {
        report_.reasons.push_back("not verified: " + status.message().what);
        for (Candidate& candidate : candidates_) candidate.report.verified = candidate.baseline;
      }
    } else {
      report_.reasons.push_back("verification was switched off");
      for (Candidate& candidate : candidates_) candidate.report.verified = static_cast<bool>(candidate.call);
    }
    stage("verify", now_s() - start);
  }
  step([&] {
    add_launch_replays();
    measure_memory();
  });
  double start = now_s();
  KRN_TRY(step([&] { return race_all(); }));
  stage("race", now_s() - start);
  step([&] {
    finish();
    write_ledger_record();
  });
  if (!std::exchange(s_.wrote_other_sizes, true) && prepared_) {
    start = now_s();
    report_.kernels_generated += step([&] { return compile_other_structures(s_, specs_); });
    stage("other_sizes", now_s() - start);
  }
  if (Cache* cache = s_.runtime.cache()) step([&] { cache->sweep(); });  // here and not where entries are written: a decision writes many
  return report_;
}

}  // namespace

Result<ModelReport> decide(Session::Impl& session, const std::vector<TensorRef>& inputs) {
  Result<ModelReport> report = Decider(session, inputs).run();
  if (!report.ok()) return report;
  const bool falls_back = report->nodes_compiled < report->nodes || report->nodes == 0;
  if (falls_back && session.options.fallback != Fallback::kAllow) {
    const std::string why = report->reasons.empty() ? std::string() : report->reasons.front();
    const std::string which = report->nodes == 0 ? std::string("all") : std::to_string(report->nodes - report->nodes_compiled) + " of " + std::to_string(report->nodes);
    const std::string what = which + " operators run eagerly, " + std::to_string(std::lround(report->eager_share * 100)) + " % of a call's time";
    if (session.options.fallback == Fallback::kForbid)
      return Status(Code::k_unsupported, {"fallback is forbidden and " + what, session.name, "calls are answered as before", why});
    report->reasons.insert(report->reasons.begin(), "warning: " + what);
  }
  for (std::string& incident : session.runtime.plugins().take_incidents()) report->reasons.push_back(std::move(incident));
  return report;
}

}  // namespace keirin
