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
#include "core/api/decision_key.h"
#include "core/api/repro.h"
#include "core/api/trial.h"
#include "core/base/overlap.h"
#include "core/eager/library_settings.h"
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
constexpr uint64_t kConfirmNs = 4'000'000'000;  // what `bench` publishes was true for so long

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
  CallFn own;                  // the same, its outputs not yet shared as eager's are: what a launch replay records
  std::shared_ptr<Plan> plan;  // null for eager and launch replays
  std::vector<std::string> refusals;
  int nodes_compiled = 0;
  bool baseline = false;       // eager and eager with launch replay: nothing to verify against but themselves
};

// What a plan answered wrong, where the user wants it kept: into a folder. A sentence about it, or nothing.
std::string keep_wrong(Session::Impl& s, const Prepared& prepared, std::string plan, const Tensors& inputs, const std::string& reason) {
  const std::string& parent = s.options.repro_dir;
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
    for (const TensorRef& t : inputs) {
      specs_.push_back(spec_of(*t));
      report_.inputs.push_back(spec_text(specs_.back()));
    }
    report_.sizes = s_.free_sizes(specs_);
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
  Status restore_state() { return trials_.restore(); }
  Result<Tensors> own_inputs(const Tensors& inputs) { return trials_.own_copies(inputs); }
  CallGuard call_guard() const;
  CallFn in_eagers_forms(CallFn call, bool may_differ) { return with_forms(std::move(call), forms_, may_differ, services_, s_.weights); }
  bool strides_may_differ(const Plan& plan) const;
  bool inputs_share() const;
  std::shared_ptr<Decision> decision_for(CallFn call, std::shared_ptr<PlanGuard> guard);
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
  Status verify_capture(const Tensors& inputs, const RefereeAnswer& referee);
  Status verify_eager(const Tensors& referee, const Tensors& eager, const std::vector<std::string>& names);
  Result<Tensors> input_set(int set);
  int64_t measure_peak(const Candidate& candidate);
  int64_t resident_bytes() const;
  void measure_memory();
  Status race_all();
  bool runs_in_worker() const { return s_.options.run_in == "worker" && s_.device.kind == Device::kCpu; }
  std::string disturbance(const RaceSheet& sheet) const;
  size_t earlier_choice();
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
  ObservedRun seen_;                   // eager's first call
  Trials trials_{s_, seen_};
  OutputForms forms_;                  // of eager's outputs
  bool keeps_decision_ = true;         // every candidate had its race, and none was disturbed
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
  return kDeviceContextBytes + s_.weights.storage_bytes();
}

CallGuard Decider::call_guard() const {
  CallGuard::Writes writes{seen_.written_inputs, {}, {}};
  for (const size_t i : seen_.written_weights) writes.weights.push_back(s_.weights[i].tensor);
  for (size_t i = 0; i < s_.weights.size(); ++i) writes.all_weights.push_back(s_.weights[i].tensor);
  return CallGuard(inputs_, s_.device, numeric_modes(s_.device), writes);
}

// Whether an output of the plan may have other strides than eager's: those of eager steps are not known before they run.
bool Decider::strides_may_differ(const Plan& plan) const {
  if (std::any_of(plan.steps().begin(), plan.steps().end(), [](const PlanStep& step) { return !step.executable; })) return true;
  const Graph& graph = prepared_->graph;
  size_t user = 0;
  for (const Output& output : graph.outputs) {
    if (output.updates != kNone) continue;
    const TensorSpec& spec = forms_.specs.at(user++);
    const Type& type = graph.type(output.value);
    if (spec.sizes != type.sizes) return true;
    for (size_t d = 0; d < spec.sizes.size(); ++d)
      if (spec.sizes[d] > 1 && spec.strides[d] != type.strides[d]) return true;
  }
  return false;
}

bool Decider::inputs_share() const {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    for (size_t k = 0; k < i; ++k)
      if (ranges_meet(*inputs_[i], *inputs_[k])) return true;
    for (size_t k = 0; k < s_.weights.size(); ++k)
      if (ranges_meet(*inputs_[i], *s_.weights[k].tensor)) return true;
  }
  return false;
}

// An empty call is eager's, which needs no guard beyond the sizes.
std::shared_ptr<Decision> Decider::decision_for(CallFn call, std::shared_ptr<PlanGuard> guard) {
  return std::make_shared<Decision>(Decision{call ? call_guard() : CallGuard(specs_), std::move(call), std::move(guard)});
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
    candidate.own = [plan = built->plan, prepared = prepared_](const Tensors& inputs) { return plan->run(inputs); };
    candidate.call = in_eagers_forms(candidate.own, strides_may_differ(*built->plan));
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
    candidate.own = [shared](const Tensors& inputs) { return shared->run(inputs); };
    candidate.call = in_eagers_forms(candidate.own, true);
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
  const auto answer = [&](const CallFn& call) -> Result<Trial> {
    KRN_TRY_LET(Trial trial, trials_.run(call, inputs));
    for (TensorRef& t : trial.numbers)
      if (t && t->storage_bytes() >= kMost * dtype_bytes(t->dtype()) && num_elements(*t) > kMost) {
        KRN_TRY_LET(t, services_.wrap({t->dtype(), {kMost}, {1}, t->device()}, t->data(), t));
      }
    return trial;
  };
  KRN_TRY_LET(const Trial once, answer(plain));
  const size_t num_outputs = s_.eager->num_outputs();
  const auto alike = [&](const Trial& other) -> Result<bool> {
    if (other.numbers.size() != once.numbers.size() || !trials_.other_difference(once, other, num_outputs).empty()) return false;
    JudgeOptions options;
    options.error_budget = 1e-2;
    KRN_TRY_LET(const Judgement judgement, judge(once.numbers, once.numbers, other.numbers, services_, options));
    return judgement.right;
  };
  KRN_TRY_LET(const Trial replayed, answer(recorded));
  KRN_TRY_LET(const bool right, alike(replayed));
  if (right) return true;
  KRN_TRY_LET(const Trial twice, answer(plain));
  KRN_TRY_LET(const bool repeats, alike(twice));
  return !repeats;
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
    auto replay = LaunchReplay::record(candidates_[i].own, inputs_, seen_.written_inputs, services_, s_.device);
    if (const Status status = restore_state(); !status.ok()) replay = status;
    if (!replay.ok()) {
      recorded.report.reason = "unsupported";
      recorded.report.note = replay.status().message().what;
      recorded.report.verified = false;
    } else {
      std::shared_ptr<LaunchReplay> shared = std::move(*replay);
      // The recording reads the plan's arena and weights: it keeps the call alive.
      const CallFn call = in_eagers_forms([shared, keep = candidates_[i].own](const Tensors& inputs) { return shared->run(inputs); }, !candidates_[i].plan || strides_may_differ(*candidates_[i].plan));
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
  if (set == 0) return inputs_;
  if (!s_.rules) {
    KRN_TRY_LET(Tensors drawn, make_inputs(prepared_->captured.graph, services_, {static_cast<uint64_t>(set), static_cast<uint32_t>(set), s_.device, {}}));
    // Integers that an operator outside the table reads may be pivots, lengths or offsets, and others than the caller's no valid ones.
    const std::vector<InputHint> hints = infer_inputs(prepared_->captured.graph);
    for (size_t i = 0; i < drawn.size() && i < hints.size(); ++i)
      if (hints[i].unknown_meaning) drawn[i] = inputs_[i];
    return drawn;
  }
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

// The captured graph in fp64 against the file's operators in fp64: an error of capture shows here whatever eager's dtype hides.
Status Decider::verify_capture(const Tensors& inputs, const RefereeAnswer& referee) {
  const Graph& graph = prepared_->captured.graph;
  KRN_TRY_LET(const Tensors captured, evaluate(graph, prepared_->captured.calls, inputs, prepared_->constants, {s_.device, DType::k_f64}));
  KRN_TRY(restore_state());
  const size_t num_outputs = s_.eager->num_outputs();
  std::vector<std::string> names;
  Tensors ours, theirs;
  size_t user = 0;
  for (size_t k = 0; k < graph.outputs.size(); ++k) {
    const Output& output = graph.outputs[k];
    if (output.updates == kNone) {
      if (user >= num_outputs) return Status(Code::k_wrong_result, "the captured graph has more outputs than the model");
      names.push_back("output " + std::to_string(user));
      theirs.push_back(referee.numbers[user++]);
    } else {
      const Value& target = graph.values[output.updates];
      const auto written = std::find(seen_.written_weights.begin(), seen_.written_weights.end(), size_t{target.index});
      const bool is_input = target.kind == ValueKind::kInput;
      const bool known = is_input ? std::count(seen_.written_inputs.begin(), seen_.written_inputs.end(), size_t{target.index}) > 0
                                  : written != seen_.written_weights.end();
      if (!known) return Status(Code::k_wrong_result, "the captured graph writes \"" + target.name + "\", which eager does not");
      names.push_back("\"" + target.name + "\" after the call");
      const TensorRef& after = is_input ? referee.first_inputs[target.index] : referee.first_weights[static_cast<size_t>(written - seen_.written_weights.begin())];
      const TensorRef& before = is_input ? inputs[target.index] : s_.weights[target.index].tensor;
      KRN_TRY_LET(const Tensors changed, changed_elements(before, {after, captured[k]}));
      theirs.push_back(changed[0]);
      ours.push_back(changed[1]);
      continue;
    }
    ours.push_back(captured[k]);
  }
  const size_t num_updates = graph.outputs.size() - user;
  if (user != num_outputs || num_updates < seen_.written_inputs.size())
    return Status(Code::k_wrong_result, "the captured graph lacks an output, or a write to an input");
  // fp64 on both sides: only the order of sums differs, unless an operator computes in its own dtype on either, or a device's kernel has
  // constants of f32 (some of CUDA's for fp64 do).
  const double bound = referee.has_own_dtype ? eager_bound(graph, false) : s_.device.kind == Device::kCpu ? 1e-9 : 1e-6;
  KRN_TRY_LET(const std::string difference, find_difference(theirs, ours, services_, {bound, true}, names));
  if (difference.empty()) return {};
  return Status(Code::k_wrong_result, "the captured graph does not mean what the file's operators do: " + difference);
}

// Eager in its own dtypes has to be near the referee: a candidate as far from it as eager may be anywhere.
Status Decider::verify_eager(const Tensors& referee, const Tensors& eager, const std::vector<std::string>& names) {
  const bool tf32 = s_.device.kind != Device::kCpu;  // LibTorch's convolutions may use it unless told not to
  const Nearness nearness{eager_bound(prepared_->captured.graph, tf32), false};
  KRN_TRY_LET(const std::string difference, find_difference(referee, eager, services_, nearness, names));
  if (difference.empty()) return {};
  return Status(Code::k_wrong_result, "eager itself is further from fp64 than its dtypes explain, so nothing can be judged by it: " + difference);
}

Status Decider::verify_set(int set, const Tensors& inputs) {
  Tensors referee;
  {
    KRN_TRY_LET(RefereeAnswer answer, trials_.referee(inputs));
    if (set == 0) KRN_TRY(verify_capture(inputs, answer));
    referee = std::move(answer.numbers);
  }
  const size_t num_outputs = s_.eager->num_outputs();
  KRN_TRY_LET(Trial eager, trials_.run(candidates_[0].call, inputs));
  JudgeOptions judging = judge_options(prepared_->captured.graph, s_.options.numerics, s_.options.error_budget);
  judging.names = trials_.names(num_outputs);
  judging.must_vary = std::min(num_outputs, s_.must_vary);
  // Inputs and weights at the end of the lists are compared where somebody wrote.
  const Tensors contents = trials_.contents(inputs);
  const size_t num_answers = eager.numbers.size() - contents.size();
  const auto where_written = [&](std::vector<Tensors*> lists) -> Status {
    for (size_t k = 0; k < contents.size(); ++k) {
      Tensors same_place;
      for (const Tensors* list : lists) same_place.push_back((*list)[num_answers + k]);
      KRN_TRY_LET(same_place, changed_elements(contents[k], same_place));
      for (size_t i = 0; i < lists.size(); ++i) (*lists[i])[num_answers + k] = same_place[i];
    }
    return {};
  };
  {
    Tensors theirs = referee, own = eager.numbers;
    KRN_TRY(where_written({&theirs, &own}));
    KRN_TRY(verify_eager(theirs, own, judging.names));
  }
  // What the model returns as None is nothing to judge.
  const auto without_absent = [&](Tensors tensors) {
    size_t at = 0;
    std::erase_if(tensors, [&](const TensorRef&) { return !eager.numbers[at++]; });
    return tensors;
  };
  for (size_t i = judging.names.size(); i-- > 0;)
    if (!eager.numbers[i]) {
      judging.names.erase(judging.names.begin() + static_cast<ptrdiff_t>(i));
      judging.must_vary -= i < num_outputs;
    }
  for (Candidate& candidate : candidates_) {
    if (candidate.baseline || !candidate.call || (set > 0 && !candidate.report.verified)) continue;
    candidate.report.verified = false;
    pass_gate();
    Result<Trial> trial = trials_.run(candidate.call, inputs);
    if (!trial.ok()) {
      candidate.report.reason = "compile_failed";
      candidate.report.note = "set " + std::to_string(set) + ": " + trial.status().text();
      continue;
    }
    Judgement judgement;
    if (trial->numbers.size() != eager.numbers.size()) {
      judgement.reason = "it returns " + std::to_string(trial->numbers.size()) + " tensors, eager " + std::to_string(eager.numbers.size());
    } else {
      Tensors theirs = referee, own = eager.numbers;
      KRN_TRY(where_written({&theirs, &own, &trial->numbers}));
      KRN_TRY_LET(judgement, judge(without_absent(std::move(theirs)), without_absent(std::move(own)), without_absent(trial->numbers), services_, judging));
    }
    if (const std::string difference = trials_.other_difference(eager, *trial, num_outputs); judgement.right && !difference.empty()) {
      judgement.right = judgement.verified = false;
      judgement.reason = difference;
    }
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
  ProcessInterference interference(!runs_in_worker());
  options.interference = s_.options.interference ? s_.options.interference : &interference;
  progress("race", 0.5);
  if (s_.options.measure_again) options.confirm_ns = std::min<uint64_t>(kConfirmNs, options.limit_ns / 4);
  if (s_.options.force == "compiled")
    for (size_t r = 0; r < of_runner.size(); ++r)
      if (!candidates_[of_runner[r]].report.plugin.empty()) options.one_must_race.push_back(r);
  KRN_TRY_LET(RaceSheet sheet, race(runners, replay_runner, options));
  keeps_decision_ = sheet.disturbed.empty();
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
      case RaceOutcome::kDisturbed: report.reason = "disturbed"; break;
      case RaceOutcome::kCancelled:
      case RaceOutcome::kScreened: report.reason = "not_raced"; break;
      case RaceOutcome::kFailed: report.reason = "compile_failed"; break;
      default: report.reason = "inside_noise"; break;
    }
    report.note = row.note;
    if (report.reason == "compile_failed") report.note = row.status.message().what;
  }
  KRN_TRY(restore_state());
  size_t winner = KRN_PLANTED(winner_of_dropped) ? sheet.winner : of_runner[sheet.winner];
  report_.disturbed = disturbance(sheet);
  if (!report_.disturbed.empty()) winner = earlier_choice();
  if (s_.options.force == "eager") winner = 0;
  if (s_.options.force == "compiled") {
    // The one that was raced, for its figures are known; else any.
    const auto rank = [&](size_t i) {
      const CandidateReport& r = candidates_[i].report;
      return r.plugin.empty() || !r.verified || !candidates_[i].call ? 0 : r.blocks > 0 ? 2 : 1;
    };
    for (size_t i = 1; i < candidates_.size(); ++i) {
      const CandidateReport &own = candidates_[i].report, &held = candidates_[winner].report;
      if (rank(i) > rank(winner) || (rank(i) > 0 && rank(i) == rank(winner) && own.milliseconds < held.milliseconds)) winner = i;
    }
  }
  if (candidates_[winner].report.reason == "disturbed") report_.disturbed = candidates_[winner].report.note;
  if (!report_.disturbed.empty())
    for (Candidate& candidate : candidates_) candidate.report.milliseconds = 0;
  if (!s_.options.force.empty()) candidates_[winner].report.reason = "forced";
  report_.eager_replay_ms = replay_runner ? candidates_[launch_replay_].report.milliseconds : 0;
  // The times of one race stand beside each other: the baseline's is that of the winner's own.
  const auto of_winner = std::find(of_runner.begin(), of_runner.end(), winner);
  const RaceRow* row = of_winner == of_runner.end() ? nullptr : &sheet.rows[static_cast<size_t>(of_winner - of_runner.begin())];
  if (row && row->baseline_ns > 0 && report_.disturbed.empty()) {
    candidates_[of_runner[sheet.baseline]].report.milliseconds = row->baseline_ns / 1e6;
    if (replay_runner && sheet.baseline == replay_runner) report_.eager_replay_ms = row->baseline_ns / 1e6;
  }
  choose(winner);
  return {};
}

// Why the race told nothing, if it did not: a winner is one whatever happened to others, but that nobody won is known only if all raced.
std::string Decider::disturbance(const RaceSheet& sheet) const {
  if (sheet.disturbed.empty() || (sheet.winner != sheet.baseline && !sheet.baseline_disturbed)) return {};
  return sheet.disturbed;
}

// What an undisturbed race chose before, in this process or another, if that is here and right; else eager.
size_t Decider::earlier_choice() {
  std::string why = "the race was disturbed: " + report_.disturbed;
  size_t found = 0;
  for (size_t i = 0; ledger_ && i < candidates_.size(); ++i)
    if (candidates_[i].report.name == ledger_->choice && candidates_[i].call && candidates_[i].report.verified) found = i;
  if (s_.options.force.empty())
    why += ledger_ && candidates_[found].report.name == ledger_->choice ? "; the choice is that of an earlier race" : "; eager answers";
  report_.reasons.insert(report_.reasons.begin(), why);
  return found;
}

// The steps of a plan, with microseconds that are medians over a few timed runs; without, where the race was disturbed.
void Decider::time_steps(Candidate& candidate) {
  constexpr size_t kRuns = 5, kMostRuns = 25;
  const std::vector<PlanStep>& steps = candidate.plan->steps();
  std::vector<std::vector<double>> us_of_steps(steps.size());
  std::vector<double> overheads;
  ProcessInterference interference(!runs_in_worker());
  size_t disturbed = 0;
  for (size_t i = 0; i < kMostRuns && overheads.size() < kRuns && report_.disturbed.empty(); ++i) {
    std::vector<double> step_us;
    const uint64_t waited = interference.waited_ns();
    const uint64_t start = ticks();
    const Result<Tensors> outputs = candidate.plan->run_timed(raced_, step_us);  // freeing them is the caller's time
    if (!outputs.ok()) return;
    const double us = static_cast<double>(ticks() - start) * microseconds_per_tick();
    const bool quiet = static_cast<double>(interference.waited_ns() - waited) <= kDisturbedShare * us * 1e3;
    if (!quiet && ++disturbed + kRuns <= kMostRuns) continue;
    overheads.push_back(us - std::accumulate(step_us.begin(), step_us.end(), 0.0));
    for (size_t s = 0; s < steps.size(); ++s) us_of_steps[s].push_back(step_us[s]);
  }
  if (disturbed + kRuns > kMostRuns)
    report_.reasons.push_back("the times of steps were taken while others had the processor");
  (void)restore_state();
  report_.steps_of = candidate.report.name;
  report_.call_overhead_us = median(overheads);
  for (size_t s = 0; s < steps.size(); ++s)
    report_.steps.push_back({steps[s].name, steps[s].executable ? candidate.report.plugin : "eager", steps[s].num_ops,
                             median(us_of_steps[s]), steps[s].executable ? "" : "unsupported", steps[s].note});
}

// Of the steps' time; of their operators where none was timed.
double Decider::eager_share() const {
  double eager = 0, all = 0;
  for (const StepReport& step : report_.steps) {
    const double share = report_.disturbed.empty() ? step.microseconds : step.ops;
    all += share;
    if (step.choice == "eager") eager += share;
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
  if (winner > 0 && chosen.report.gain > 0 && !chosen.baseline && report_.disturbed.empty()) {
    report_.speedup = chosen.report.gain, report_.speedup_low = chosen.report.gain_low, report_.speedup_high = chosen.report.gain_high;
  }
  if (winner == 0) return s_.publish(decision_for({}, {}));
  s_.publish(decision_for(chosen.call, make_guard(chosen.report.name, chosen.report.plugin)));
}

// What is compared in service is what was compared before: the judge's rule, with the file's operators in fp64 as referee. A model
// that writes its state or inputs is not compared: a second run would write them again.
std::shared_ptr<PlanGuard> Decider::make_guard(const std::string& name, const std::string& plugin) {
  auto guard = std::make_shared<PlanGuard>();
  if (trials_.writes() || seen_.draws_random || !prepared_ || !s_.options.verify) return guard;
  guard->sample_rate = s_.options.sample_rate;
  guard->check = [&s = s_, prepared = prepared_, name](const Tensors& inputs, const Tensors& outputs) -> std::string {
    TensorServices& services = s.runtime.tensors();
    (void)services.synchronize(s.device);  // the answer was enqueued on the caller's stream
    auto referee = s.eager->referee(inputs, {}, 1);
    auto eager = s.eager->run(inputs);
    if (!referee.ok() || !eager.ok()) return {};
    auto judgement = judge(referee->outputs[0], *eager, outputs, services,
                           judge_options(prepared->captured.graph, s.options.numerics, s.options.error_budget));
    if (!judgement.ok() || judgement->right) return {};
    return judgement->reason + keep_wrong(s, *prepared, name, inputs, judgement->reason);
  };
  PluginDevice* device = nullptr;
  for (PluginDevice* each : s_.runtime.plugins().devices())
    if (each->plugin_name() == plugin && each->torch_device() == s_.device) device = each;
  auto bytes = write_region(prepared_->graph);
  const Hash graph = bytes.ok() ? bytes->hash : Hash{};
  guard->revoke = [&s = s_, calls = CallGuard(specs_), name, device, graph](const std::string& what) {
    s.revoke(calls, name + " answered wrong in service: " + what);
    // The graph as a whole is what the plugin claims next time: it is not given it again.
    if (device) device->quarantine(graph, "answered wrong in service");
  };
  return guard;
}

void Decider::finish() {
  const Candidate* best = nullptr;  // the chosen plan; else the fastest one; else, where none was timed, the first
  const auto rank = [&](const Candidate& c) { return c.report.name == report_.chosen ? 2 : c.report.milliseconds > 0 ? 1 : 0; };
  for (const Candidate& candidate : candidates_) {
    if (!candidate.plan || !candidate.call || !candidate.report.verified) continue;
    const bool faster = best && candidate.report.milliseconds < best->report.milliseconds;
    if (!best || rank(candidate) > rank(*best) || (rank(candidate) == 1 && rank(*best) == 1 && faster)) best = &candidate;
  }
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
    const double saved = report_.disturbed.empty() ? (report_.eager_ms - report_.chosen_ms) / 1e3 : 0;
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
  std::map<std::string, std::string> out = {{"torch", KEIRIN_TORCH_VERSION}, {"file", s_.file_stamp}};
  for (PluginDevice* device : s_.runtime.plugins().devices())
    if (device->torch_device() == s_.device)
      out["plugin " + device->plugin_name()] =
          device->plugin_build_id() + " " + device->arch() + " " + device->fingerprint() + " " + device->name();
  return out;
}

CacheKey Decider::ledger_key(const Hash& graph) const {
  Options options = s_.options;
  options.device = device_name(s_.device);  // "cuda" is cuda:0
  options.threads = services_.num_threads();
  return decision_key(graph, options, library_settings(s_.device));
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
  CallFn chosen;
  bool found = false;
  constexpr std::string_view kRecorded = "+launch_replay";
  const bool recorded = ledger_->choice.ends_with(kRecorded);
  const std::string choice = ledger_->choice.substr(0, ledger_->choice.size() - (recorded ? kRecorded.size() : 0));
  for (PluginDevice* device : s_.runtime.plugins().devices())
    for (Cut cut : {Cut::kAll, Cut::kNoAnchors, Cut::kAnchorsOnly})
      for (uint32_t k : {0u, 1u})
        if (device->torch_device() == s_.device && plan_name(*device, cut, k) == choice && !found) {
          auto plan = build_plan(s_, *prepared_, *device, cut, k);
          if (!plan.ok() || !plan->lost.empty()) return false;  // not what was measured then
          built = std::move(*plan);
          chosen = [plan = built.plan, prepared = prepared_](const Tensors& inputs) { return plan->run(inputs); };
          found = true;
        }
  if (!found && choice != "eager") return false;  // a replay: cheap to make again, but raced then
  if (recorded) {
    if (!chosen) chosen = [&s = s_](const Tensors& inputs) { return s.eager->run(inputs); };
    auto replay = LaunchReplay::record(chosen, inputs_, seen_.written_inputs, services_, s_.device);
    if (!restore_state().ok() || !replay.ok()) return false;
    // The recording reads the plan's arena and weights: it keeps the call alive.
    chosen = [shared = std::shared_ptr<LaunchReplay>(std::move(*replay)), keep = chosen](const Tensors& inputs) { return shared->run(inputs); };
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
  std::shared_ptr<PlanGuard> guard = chosen ? make_guard(ledger_->choice, built.plugin) : nullptr;
  s_.publish(decision_for(in_eagers_forms(std::move(chosen), !built.plan || strides_may_differ(*built.plan)), std::move(guard)));
  return true;
}

void Decider::write_ledger_record() {
  if (!ledger_key_ || (!keeps_decision_ && !KRN_PLANTED(disturbed_kept))) return;
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
  // Eager first: its error is the caller's answer, and nothing else is tried. What it does with memory decides what is captured.
  // Where inputs share memory with each other, that is not a call that others are like: it is asked with copies.
  Tensors apart = inputs_;
  if (inputs_share())
    for (TensorRef& input : apart) {
      KRN_TRY_LET(input, services_.clone(input));
    }
  KRN_TRY_LET(const Tensors first, s_.eager->observe(apart, seen_));
  eager_process_bytes_ = resident_bytes();
  forms_ = forms_of(first, apart, s_.weights);
  KRN_TRY(trials_.save());
  Result<Prepared> captured = capture(s_, specs_, &seen_);
  if (captured.ok()) prepared_ = std::make_shared<Prepared>(std::move(*captured));
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
  eager.call = eager.own = [&s = s_](const Tensors& inputs) { return s.eager->run(inputs); };
  candidates_.push_back(std::move(eager));
  KRN_TRY(step([&] { return prepare(); }));
  if (std::string why = why_no_plugin(s_); !why.empty()) report_.reasons.insert(report_.reasons.begin(), std::move(why));
  // What such a call writes is reached by two names, which no plan and no recording expects: nothing is decided for its like.
  const char* only_eager = nullptr;
  if (!call_guard().admits(inputs_)) only_eager = "the model writes an input that shares memory with another one or with a weight";
  if (seen_.reads_storage) only_eager = "the model reads an input or weight by its place in memory (as_strided)";
  if (only_eager != nullptr) {
    report_.chosen = "eager";
    report_.verified = true;
    report_.eager_share = 1;
    report_.reasons.push_back(std::string(only_eager) + ": eager answers such calls");
    return report_;
  }
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
        for (Candidate& candidate : candidates_) {
          candidate.report.verified = candidate.baseline;
          if (!candidate.baseline && candidate.call) candidate.report.reason = "not_verified", candidate.report.note = status.message().what;
        }
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
  if (std::find(inputs.begin(), inputs.end(), nullptr) != inputs.end()) return session.eager->run(inputs).status();  // says which
  Result<ModelReport> report = Decider(session, inputs).run();
  if (!report.ok()) return report;
  const bool falls_back = report->nodes_compiled < report->nodes || report->nodes == 0;
  if (falls_back && session.options.fallback != Fallback::kAllow) {
    const std::string why = report->reasons.empty() ? std::string() : report->reasons.front();
    const std::string which = report->nodes == 0 ? std::string("all") : std::to_string(report->nodes - report->nodes_compiled) + " of " + std::to_string(report->nodes);
    const std::string what = which + " operators run eagerly, " + std::to_string(std::lround(report->eager_share * 100)) + " % of a call's time";
    const std::string because = why.empty() ? "" : ": " + why;
    if (session.options.fallback == Fallback::kForbid)
      return Status(Code::k_unsupported, {"fallback is forbidden and " + what, session.name, "calls are answered as before", why});
    report->reasons.insert(report->reasons.begin(), "warning: " + what + because);
  }
  for (std::string& incident : session.runtime.plugins().take_incidents()) report->reasons.push_back(std::move(incident));
  return report;
}

}  // namespace keirin
