// SPDX-License-Identifier: Apache-2.0
//
// How a chain is decided: one run that times the segments, one that decides each where it stands in the run, on the
// tensors that it is given there, and one race of the chain against eager.
#include "core/api/chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/api/contest.h"
#include "core/api/decide.h"
#include "core/api/kept_decision.h"
#include "core/eager/program/later_writes.h"
#include "core/eager/tensor_services.h"

namespace keirin {
namespace {

using Tensors = std::vector<TensorRef>;

// A segment of less than this share of a call is left to eager: a race could not see what it gains,
// and each one costs a decision.
constexpr double kLeastShare = 0.005;
constexpr int kTimedRuns = 10;
constexpr double kTimedSeconds = 0.5;
// New sizes of one segment that one run decides for: a loop may meet another one in each round.
constexpr size_t kMostNewSizes = 4;

std::string number_text(const pt2::Number& number) {
  return std::visit([](auto value) { return fmt::format("{}", value); }, number);
}

// "f32[12,16], 12".
std::string sizes_text(const SegmentInputs& inputs) {
  std::string text;
  for (const TensorRef& tensor : inputs.tensors) text += (text.empty() ? "" : ", ") + spec_text(spec_of(*tensor));
  for (const pt2::Number& number : inputs.numbers) text += (text.empty() ? "" : ", ") + number_text(number);
  return text;
}

// Of a 0-d tensor as EagerProgram returns a number.
std::optional<pt2::Number> number_of(const TensorRef& tensor) {
  if (!tensor || tensor->rank() != 0 || tensor->device().kind != Device::kCpu) return std::nullopt;
  switch (tensor->dtype()) {
    case DType::k_i64:
      return pt2::Number(*static_cast<const int64_t*>(tensor->data()));
    case DType::k_f64:
      return pt2::Number(*static_cast<const double*>(tensor->data()));
    case DType::k_bool:
      return pt2::Number(*static_cast<const bool*>(tensor->data()));
    default:
      return std::nullopt;
  }
}

// The weights that a segment names, in a table of its own; tensors are shared.
WeightTable weights_of(const WeightTable& all, const std::vector<std::string>& targets) {
  WeightTable own;
  std::map<uint32_t, uint32_t> storages;
  for (const std::string& target : targets) {
    const auto position = all.find(target);
    if (!position || own.find(target)) continue;
    const Weight& weight = all[*position];
    const uint32_t storage = storages.try_emplace(weight.storage, static_cast<uint32_t>(storages.size())).first->second;
    own.add_view(weight.name, weight.tensor, storage, weight.byte_offset);
  }
  return own;
}

}  // namespace

// One segment at one set of sizes.
struct Chain::Sized {
  std::vector<pt2::Number> numbers;         // that it was written with
  std::vector<pt2::Number> number_results;  // follow from sizes and numbers
  std::unique_ptr<Session::Impl> session;   // its table has what answers
  ModelReport report;
  std::string sizes;
};

struct Chain::Part {
  PlanTable<Sized> sized;
  std::atomic<bool> has_plans{false};
  // Of the decision at hand.
  double seconds = 0;  // in eager, all its runs of one call
  int runs = 0;        // of one call
  size_t new_sizes = 0;
  std::vector<std::shared_ptr<const Sized>> met;
  std::vector<std::string> refusals;  // why nothing could be decided, by sizes
};

// Lets eager run and looks at the clock.
class Chain::Timing final : public SegmentRunner {
 public:
  explicit Timing(Chain& chain) : chain_(chain) {}
  bool wants(size_t) override {
    start_ = now();
    return false;
  }
  Result<bool> answer(size_t, const SegmentInputs&, SegmentResults&) override { return false; }
  void called(size_t segment) override {
    Part& part = *chain_.parts_[segment];
    part.seconds += now() - start_;
    ++part.runs;
  }

 private:
  double now() {
    (void)chain_.whole_.runtime.tensors().synchronize(chain_.whole_.device);
    return now_s();
  }
  Chain& chain_;
  double start_ = 0;
};

// Decides for what it is asked about, and lets eager answer.
class Chain::Asking final : public SegmentRunner {
 public:
  Asking(Chain& chain, double call_seconds, bool other_branches)
      : chain_(chain), call_seconds_(call_seconds), other_branches_(other_branches) {}
  // A segment that the timed run did not come by stands in another branch.
  bool wants(size_t segment) override {
    const Part& part = *chain_.parts_[segment];
    return part.runs == 0 || part.seconds >= kLeastShare * call_seconds_ || chain_.whole_.options.force == "compiled";
  }
  Result<bool> answer(size_t segment, const SegmentInputs& inputs, SegmentResults&) override {
    chain_.decide_segment(segment, inputs);
    return false;
  }
  bool wants_other_branch() const override { return other_branches_; }

 private:
  Chain& chain_;
  double call_seconds_;
  bool other_branches_;
};

class Chain::Serving final : public SegmentRunner {
 public:
  explicit Serving(Chain& chain) : chain_(chain) {}
  bool wants(size_t segment) override { return chain_.parts_[segment]->has_plans.load(std::memory_order_relaxed); }
  Result<bool> answer(size_t segment, const SegmentInputs& inputs, SegmentResults& results) override {
    return chain_.answer(segment, inputs, results);
  }

 private:
  Chain& chain_;
};

Chain::Chain(Session::Impl& whole, const pt2::Segments& segments) : whole_(whole), segments_(segments) {
  for (size_t i = 0; i < segments.all.size(); ++i) parts_.push_back(std::make_unique<Part>());
  const pt2::Program& program = whole.model->program;
  const LaterWrites writes(program.graph, {});
  std::set<uint32_t> storages;
  for (const pt2::InputSpec& input : program.inputs) {
    const auto position = input.target.empty() ? std::nullopt : whole.weights.find(input.target);
    for (const std::string& name : input.arg.names())
      if (position && writes.ever_of(name)) storages.insert(whole.weights[*position].storage);
  }
  for (const pt2::OutputSpec& output : program.outputs)
    if (const auto position = output.is_mutation() ? whole.weights.find(output.target) : std::nullopt)
      storages.insert(whole.weights[*position].storage);
  for (size_t i = 0; i < whole.weights.size(); ++i)
    if (storages.contains(whole.weights[i].storage)) written_.insert(whole.weights[i].name);
}
Chain::~Chain() = default;

Result<bool> Chain::answer(size_t segment, const SegmentInputs& inputs, SegmentResults& results) {
  const auto now = parts_[segment]->sized.now();
  for (const auto& sized : *now) {
    if (sized->numbers != inputs.numbers) continue;
    const std::shared_ptr<const keirin::Decision> decision = sized->session->find(inputs.tensors);
    if (!decision) continue;
    if (!decision->call || !decision->guard->record->breaker.admits()) return false;
    KRN_TRY_LET(results.tensors, sized->session->answer(*decision, inputs.tensors, sized));
    results.numbers = sized->number_results;
    answered_.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  unadmitted_.fetch_add(1, std::memory_order_relaxed);
  return false;
}

Result<Tensors> Chain::call(const Tensors& inputs) {
  Serving serving(*this);
  return whole_.eager->run(inputs, &serving);
}

std::vector<std::string> Chain::take_reasons() {
  std::vector<std::string> out;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const auto now = parts_[i]->sized.now();
    for (const auto& sized : *now) {
      Session::Impl& session = *sized->session;
      const std::lock_guard lock(session.report_mutex);
      for (ModelReport& report : session.reports)
        for (std::string& reason : std::exchange(report.reasons, {}))
          out.push_back("segment " + segments_.all[i].name + " " + reason);
    }
  }
  return out;
}

// The segment as a model of its own. A first run of it shows the sizes of what it defines.
Result<std::shared_ptr<Chain::Sized>> Chain::at_sizes(size_t number, const SegmentInputs& inputs) {
  const pt2::Segment& segment = segments_.all[number];
  const pt2::Program& program = whole_.model->program;
  std::vector<TensorSpec> specs;
  for (const TensorRef& tensor : inputs.tensors) specs.push_back(spec_of(*tensor));
  auto sized = std::make_shared<Sized>();
  sized->numbers = inputs.numbers;
  sized->sizes = sizes_text(inputs);
  WeightTable weights = weights_of(whole_.weights, segment.targets);
  pt2::Named<pt2::KnownSizes> known;
  {
    const pt2::Program first = pt2::segment_program(program, segment, specs, inputs.numbers, {}, true);
    KRN_TRY_LET(const auto eager, EagerProgram::make(first, weights, whole_.device));
    Tensors copies;  // that may be written
    for (const TensorRef& tensor : inputs.tensors) {
      KRN_TRY_LET(TensorRef copy, eager->writes() ? whole_.runtime.tensors().clone(tensor) : tensor);
      copies.push_back(std::move(copy));
    }
    ObservedRun seen;
    KRN_TRY_LET(const Tensors outputs, eager->observe(copies, seen));
    for (const auto& [name, value] : seen.values)
      if (name.find('/') == std::string::npos) known[name] = {value.sizes, value.strides};
    for (size_t i = segment.tensor_results.size(); i < outputs.size(); ++i) {
      const auto result = number_of(outputs[i]);
      if (!result) return Status(Code::k_unsupported, "a result is neither a tensor nor a number");
      sized->number_results.push_back(*result);
    }
    for (size_t i = 0; i < segment.tensor_results.size(); ++i)
      if (!outputs[i]) return Status(Code::k_unsupported, "a result is not a tensor");
  }
  Options options = whole_.options;
  options.fallback = Fallback::kAllow;  // asked of the model as a whole
  if (!options.dump_dir.empty()) options.dump_dir += fmt::format("/segment-{:02}", number);
  sized->session = std::make_unique<Session::Impl>(whole_.runtime, std::move(options));
  Session::Impl& session = *sized->session;
  session.name = whole_.name + ": " + segment.name;
  session.file_stamp = whole_.file_stamp;
  session.device = whole_.device;
  session.checks = whole_.checks;
  // Where nothing has to vary, a plan that writes constants would pass.
  if (segment.varying_results > 0) session.must_vary = segment.varying_results;
  session.wrote_other_sizes = true;  // no size of it is free
  session.file.models["segment"].program = pt2::segment_program(program, segment, specs, inputs.numbers, known, false);
  session.model = &session.file.models["segment"];
  session.weights = std::move(weights);
  for (size_t i = 0; i < session.weights.size(); ++i)
    if (written_.contains(session.weights[i].name)) session.written_elsewhere.push_back(i);
  KRN_TRY_LET(session.eager, EagerProgram::make(session.model->program, session.weights, whole_.device));
  return sized;
}

void Chain::decide_segment(size_t number, const SegmentInputs& inputs) {
  Part& part = *parts_[number];
  const auto note = [&](const std::shared_ptr<const Sized>& sized) {
    if (std::find(part.met.begin(), part.met.end(), sized) == part.met.end()) part.met.push_back(sized);
  };
  // A race that was disturbed is held again when somebody asks again, and `bench` always measures again.
  const std::string sizes = sizes_text(inputs);
  for (const auto& sized : part.met)
    if (sized->sizes == sizes && sized->numbers == inputs.numbers && sized->session->find(inputs.tensors)) return;
  const auto now = part.sized.now();
  for (const auto& sized : *now)
    if (sized->numbers == inputs.numbers && sized->session->find(inputs.tensors) && sized->report.disturbed.empty() &&
        !whole_.options.measure_again)
      return note(sized);
  if (part.new_sizes == kMostNewSizes) return;
  ++part.new_sizes;
  auto sized = at_sizes(number, inputs);
  if (sized.ok()) (*sized)->session->gives_way = whole_.gives_way, (*sized)->session->decides_anew = whole_.decides_anew;
  Result<ModelReport> report = sized.ok() ? keirin::decide(*(*sized)->session, inputs.tensors) : sized.status();
  if (!report.ok()) {
    part.refusals.push_back(report.status().message().what);
    return;
  }
  (*sized)->report = *report;
  report->reasons.clear();
  (*sized)->session->reports.push_back(std::move(*report));
  const std::shared_ptr<const Sized> decided = *sized;
  part.sized.change([&](auto& list) {
    std::erase_if(
        list, [&](const auto& old) { return old->numbers == inputs.numbers && old->session->find(inputs.tensors); });
    if (list.size() >= static_cast<size_t>(whole_.options.max_shapes)) list.erase(list.begin());
    list.push_back(decided);
  });
  note(decided);
  const auto all = part.sized.now();
  part.has_plans = std::any_of(all->begin(), all->end(), [](const auto& each) {
    const auto decisions = each->session->table.now();
    return std::any_of(decisions->begin(), decisions->end(),
                       [](const auto& decision) { return static_cast<bool>(decision->call); });
  });
}

// Whether a segment's own race chose code that a plugin made, or a replay of its graph.
bool is_compiled(const ModelReport& report) { return report.chosen.rfind("eager", 0) != 0; }

// The chain as a candidate beside eager: what decides about it.
class Chain::Choosing {
 public:
  Choosing(Chain& chain, const Tensors& inputs) : chain_(chain), s_(chain.whole_), d_(chain.whole_, inputs) {}

  Result<ModelReport> run() {
    Result<ModelReport> report = choose();
    if (!report.ok()) KRN_TRY(d_.trials.restore());
    return report;
  }

 private:
  Result<ModelReport> choose() {
    Candidate eager;
    eager.report.name = "eager";
    eager.report.verified = eager.baseline = true;
    eager.call = eager.own = [&s = s_](const Tensors& inputs) { return s.eager->run(inputs); };
    d_.candidates.push_back(std::move(eager));
    double start = now_s();
    KRN_TRY(d_.step([&] { return prepare(); }));
    if (std::string why = why_no_plugin(s_); !why.empty()) d_.report.reasons.push_back(std::move(why));
    KRN_TRY(decide_segments());
    KRN_TRY(d_.go_on());
    count();
    d_.stage("segments", now_s() - start);
    add_candidate();
    if (start_warm(now_s() - start)) return d_.report;
    if (s_.never_compiles()) {
      finish(0);
      d_.report.reasons.insert(d_.report.reasons.begin(),
                               "no earlier process decided about such calls, and compile is never: eager answers them");
      return d_.report;
    }
    start = now_s();
    if (Candidate& chain = d_.candidates[1]; chain.call && s_.options.verify) {
      const Status status = d_.step([&] { return verify(); });
      chain.report.verified = status.ok();
      if (!status.ok()) {
        chain.report.reason = status.code() == Code::k_wrong_result ? "wrong_result" : "not_verified";
        chain.report.note = status.message().what;
        d_.report.reasons.push_back("segments " + chain.report.reason + ": " + chain.report.note);
      }
    }
    d_.stage("verify", now_s() - start);
    d_.step([&] {
      measure_memory(d_);
      add_held_memory();
    });
    start = now_s();
    KRN_TRY_LET(const size_t winner, d_.step([&] { return race_candidates(d_); }));
    KRN_TRY(d_.go_on());
    d_.stage("race", now_s() - start);
    finish(winner);
    d_.step([&] { keep_decision(d_); });
    return d_.report;
  }

  // Eager's first call: its error is the caller's answer.
  Status prepare() {
    Tensors apart = d_.inputs;
    if (d_.inputs_share())
      for (TensorRef& input : apart) {
        KRN_TRY_LET(input, d_.services.clone(input));
      }
    KRN_TRY(s_.eager->observe(apart, d_.seen).status());
    d_.eager_process_bytes = resident_bytes(s_);
    KRN_TRY(d_.trials.save(d_.inputs));
    // The least of some runs after one that warms up: which segments are worth a decision has to come out alike in every process.
    Timing timing(chain_);
    const double begin = now_s();
    std::vector<double> least(chain_.parts_.size());
    for (int i = 0; i <= kTimedRuns && (i < 2 || now_s() - begin < kTimedSeconds); ++i) {
      for (const auto& part : chain_.parts_) part->seconds = 0, part->runs = 0;
      const double start = now_s();
      KRN_TRY(run_eager(timing));
      const double seconds = now_s() - start;
      call_seconds_ = i < 2 ? seconds : std::min(call_seconds_, seconds);
      for (size_t k = 0; k < least.size(); ++k)
        least[k] = i < 2 ? chain_.parts_[k]->seconds : std::min(least[k], chain_.parts_[k]->seconds);
    }
    for (size_t k = 0; k < least.size(); ++k) chain_.parts_[k]->seconds = least[k];
    return {};
  }

  // A run of eager on copies of what it writes, and state as it was before.
  Status run_eager(SegmentRunner& runner) {
    KRN_TRY_LET(const Tensors own, d_.trials.own_copies(d_.inputs));
    const Status status = s_.eager->run(own, &runner).status();
    KRN_TRY(d_.trials.restore());
    return status;
  }

  // Not a step as a whole: each segment's decision has steps of its own.
  Status decide_segments() {
    d_.progress("segments", 0.1);
    for (const auto& part : chain_.parts_) part->new_sizes = 0, part->met.clear(), part->refusals.clear();
    KRN_TRY_LET(const RandomState before, random_state(s_.device));
    // Data that a branch is not for costs an error on the CPU; on a GPU it may cost the device.
    Asking asking(chain_, call_seconds_, s_.device.kind == Device::kCpu);
    KRN_TRY(run_eager(asking));
    // Of the asking run alone: where the model draws nothing, what others drew meanwhile stays drawn.
    return s_.eager->may_draw().empty() ? Status() : set_random_state(s_.device, before);
  }

  // What the segments come to, in numbers and rows.
  void count() {
    ModelReport& report = d_.report;
    report.nodes = chain_.segments_.operators;
    for (size_t i = 0; i < chain_.parts_.size(); ++i) {
      const pt2::Segment& segment = chain_.segments_.all[i];
      const Part& part = *chain_.parts_[i];
      const double share = call_seconds_ > 0 ? part.seconds / call_seconds_ : 0;
      SegmentReport row{segment.name, "", "eager", segment.operators, 0, part.runs, share, 1, ""};
      for (const std::string& refusal : part.refusals)
        report.reasons.push_back("segment " + segment.name + " runs in eager: " + refusal);
      if (part.met.empty()) {
        if (!part.refusals.empty())
          row.note = part.refusals.front();
        else if (part.runs == 0)
          row.note = "these inputs do not lead through it";
        else if (share < kLeastShare)
          row.note = "too short to matter";
        report.segments.push_back(std::move(row));
        continue;
      }
      int nodes = 0, compiled = 0;
      for (const auto& sized : part.met) {
        const ModelReport& r = sized->report;
        row.sizes = sized->sizes;
        row.choice = r.chosen;
        row.nodes = r.nodes > 0 ? r.nodes : segment.operators;
        row.nodes_compiled = is_compiled(r) ? r.nodes_compiled : 0;
        row.speedup = r.speedup;
        row.note = !r.disturbed.empty()                  ? "disturbed: " + r.disturbed
                   : is_compiled(r) || r.reasons.empty() ? ""
                                                         : r.reasons.front();
        report.segments.push_back(row);
        nodes = row.nodes;
        compiled = std::max(compiled, row.nodes_compiled);
        report.kernels_generated += r.kernels_generated;
        report.compile_seconds += r.compile_seconds;
        key_ += segment.name + " of " + row.sizes + ": " + r.chosen + "\n";
        if (!is_compiled(r)) continue;
        has_plans_ = true;
        held_bytes_ += r.peak_bytes;
        if (report.plugin.empty()) report.plugin = r.plugin;
      }
      const ModelReport& first = part.met.front()->report;
      report.nodes += nodes - segment.operators;  // the optimised graph's in the place of the file's
      report.nodes_compiled += compiled;
      report.nodes_opaque += first.nodes_opaque;
      if (is_compiled(first)) covered_ += share * (1 - first.eager_share);
    }
  }

  void add_candidate() {
    Candidate chain;
    chain.report.name = "segments";
    chain.report.plugin = d_.report.plugin;
    chain.report.compile_seconds = d_.report.compile_seconds;
    if (has_plans_) {
      chain.report.reason = "pending";
      chain.report.verified = true;
      chain.call = chain.own = [&chain = chain_](const Tensors& inputs) { return chain.call(inputs); };
    } else {
      chain.report.reason = "not_worth";
      chain.report.note = "no segment is faster compiled";
    }
    d_.candidates.push_back(std::move(chain));
  }

  // The segments came out as they did in an earlier process: so does the chain.
  bool start_warm(double seconds) {
    for (const std::string& input : d_.report.inputs) key_ += "input " + input + "\n";
    key_ += "chain of " + s_.name;
    read_kept_decision(d_, sha256(key_.data(), key_.size()));
    if (!d_.ledger || s_.options.measure_again || (d_.ledger->choice == "segments" && !has_plans_)) return false;
    ModelReport& report = d_.report;
    report.candidates.clear();
    for (const LedgerCandidate& known : d_.ledger->candidates)
      for (Candidate& candidate : d_.candidates)
        if (candidate.report.name == known.name) candidate.report = report_of(known);
    report.warm_start_seconds = seconds;
    report.disturbed = d_.ledger->disturbed;
    report.pays_back_after_calls = d_.ledger->pays_back_after_calls;
    finish(d_.ledger->choice == "segments" ? 1 : 0);
    report.reasons.push_back(report.disturbed.empty()
                                 ? "decided by an earlier process; bench measures again"
                                 : "decided before in this process, by a race that was disturbed: " + report.disturbed);
    return true;
  }

  // What the segments' plans hold between calls counts as the chain's, and at most as what each needed in its own race.
  void add_held_memory() {
    Candidate& chain = d_.candidates[1];
    if (!chain.call || !chain.report.verified) return;
    chain.report.peak_bytes += held_bytes_;
    const double eager = static_cast<double>(d_.eager_process_bytes + d_.candidates[0].report.peak_bytes);
    if (static_cast<double>(d_.eager_process_bytes + chain.report.peak_bytes) <= (1 + s_.options.memory_limit) * eager)
      return;
    chain.report.reason = "memory";
    chain.report.note = fmt::format("the plans of its segments would need {} MiB", chain.report.peak_bytes >> 20);
    chain.call = nullptr;
  }

  // Each segment was judged by fp64 on its own inputs. What is asked here is whether the chain is put together as eager
  // is.
  Status verify() {
    Trials& trials = d_.trials;
    KRN_TRY_LET(Trial theirs, trials.run(d_.candidates[0].call, d_.inputs));
    KRN_TRY_LET(Trial ours, trials.run(d_.candidates[1].call, d_.inputs));
    const size_t num_outputs = s_.eager->num_outputs();
    const auto wrong = [](std::string what) { return Status(Code::k_wrong_result, std::move(what)); };
    if (ours.numbers.size() != theirs.numbers.size()) return wrong("it returns another number of tensors than eager");
    if (const std::string difference = trials.other_difference(theirs, ours, num_outputs); !difference.empty())
      return wrong(difference);
    std::vector<std::string> names = trials.names(num_outputs);
    Tensors referee;
    if (Result<RefereeAnswer> answer = trials.referee(d_.inputs); answer.ok()) referee = std::move(answer->numbers);
    // In fp64 a value may fall on the other side of a limit, and the run take other sizes: then there is nothing to
    // compare with it.
    bool comparable = referee.size() == theirs.numbers.size();
    bool narrow = false;
    for (size_t i = theirs.numbers.size(); i-- > 0;) {
      const TensorRef &a = theirs.numbers[i], &b = ours.numbers[i];
      if (!a != !b || (a && !same_form(*a, *b)))
        return wrong(names[i] + " has other sizes, strides or another dtype than eager's");
      if (a) {
        narrow |= a->dtype() == DType::k_f16 || a->dtype() == DType::k_bf16;
        comparable = comparable && referee[i] && same_sizes(*referee[i], *a);
        continue;
      }
      for (Tensors* list : {&theirs.numbers, &ours.numbers}) list->erase(list->begin() + static_cast<ptrdiff_t>(i));
      names.erase(names.begin() + static_cast<ptrdiff_t>(i));
      if (i < referee.size()) referee.erase(referee.begin() + static_cast<ptrdiff_t>(i));
    }
    if (!comparable) {
      KRN_TRY_LET(const std::string difference,
                  find_difference(theirs.numbers, ours.numbers, d_.services, {narrow ? 3e-2 : 1e-4, true}, names));
      return difference.empty() ? Status() : wrong(difference);
    }
    JudgeOptions judging;
    judging.k *= 2, judging.k_narrow *= 2;  // what each segment may add to eager's error adds up over the chain
    judging.strict = s_.options.numerics == Numerics::kStrict;
    if (s_.options.numerics == Numerics::kFast) judging.error_budget = s_.options.error_budget;
    judging.names = names;
    judging.must_vary = 0;
    KRN_TRY_LET(const Judgement judgement, judge(referee, theirs.numbers, ours.numbers, d_.services, judging));
    CandidateReport &eager = d_.candidates[0].report, &chain = d_.candidates[1].report;
    chain.max_error = judgement.max_error;
    chain.eager_error = eager.eager_error = eager.max_error = judgement.eager_error;
    if (judgement.right) return {};
    // Or as far from fp64 as roundings alone may take it, where a ranking or a limit makes much of little.
    const Result<std::vector<Movement>> moved = trials.movements(d_.inputs, referee, theirs.numbers);
    if (judging.strict || !moved.ok()) return wrong(judgement.reason);
    KRN_TRY_LET(const std::string why, unexplained(referee, ours.numbers, *moved, d_.services));
    return why.empty() ? Status() : wrong(judgement.reason + "; " + why);
  }

  static bool same_sizes(const Tensor& a, const Tensor& b) {
    return a.rank() == b.rank() && std::equal(a.sizes(), a.sizes() + a.rank(), b.sizes());
  }
  static bool same_form(const Tensor& a, const Tensor& b) {
    if (a.dtype() != b.dtype() || !same_sizes(a, b)) return false;
    if (std::find(a.sizes(), a.sizes() + a.rank(), 0) != a.sizes() + a.rank()) return true;
    for (int64_t d = 0; d < a.rank(); ++d)
      if (a.sizes()[d] > 1 && a.strides()[d] != b.strides()[d]) return false;
    return true;
  }

  // Publishes the winner and fills the report.
  void finish(size_t winner) {
    const CandidateReport &eager = d_.candidates[0].report, &chain = d_.candidates[1].report;
    const bool chained = winner == 1;
    if (chained)
      s_.publish(std::make_shared<Decision>(
          Decision{d_.call_guard(), d_.candidates[1].call, std::make_shared<PlanGuard>(), {}, true, nullptr, 0}));
    else
      d_.publish({}, {});
    ModelReport& report = d_.report;
    const CandidateReport& chosen = chained ? chain : eager;
    report.chosen = chosen.name;
    report.chosen_ms = chosen.milliseconds;
    report.eager_ms = eager.milliseconds;
    report.compiled_ms = chain.milliseconds;
    report.peak_bytes = chosen.peak_bytes, report.eager_peak_bytes = eager.peak_bytes;
    report.max_error = chosen.max_error, report.eager_error = eager.eager_error;
    report.verified = chosen.verified;
    report.eager_share = chained ? std::clamp(1 - covered_, 0.0, 1.0) : 1;
    if (chained && report.disturbed.empty() && chain.gain > 0) {
      report.speedup = chain.gain, report.speedup_low = chain.gain_low, report.speedup_high = chain.gain_high;
      if (const double saved = (report.eager_ms - report.chosen_ms) / 1e3; saved > 0 && !d_.count)
        report.pays_back_after_calls = static_cast<int64_t>(report.compile_seconds / saved) + 1;
    }
    if (!chained && report.disturbed.empty() && chain.reason != "wrong_result" && chain.reason != "not_verified")
      report.reasons.insert(report.reasons.begin(),
                            "segments " + chain.reason + (chain.note.empty() ? "" : ": " + chain.note));
    report.reasons.push_back(
        fmt::format("sizes or branches depend on data: {} segments between {} places where the host looks at a value",
                    chain_.segments_.all.size(), chain_.segments_.borders));
    report.candidates = {eager, chain};
  }

  Chain& chain_;
  Session::Impl& s_;
  Deciding d_;
  double call_seconds_ = 0;
  double covered_ = 0;  // share of eager's time that is spent in plans
  bool has_plans_ = false;
  int64_t held_bytes_ = 0;
  std::string key_;  // what the segments' decisions came to
};

Result<ModelReport> Chain::decide(const Tensors& inputs) {
  KRN_TRY_LET(ModelReport report, Choosing(*this, inputs).run());
  KRN_TRY(keep_fallback_rule(whole_, report));
  for (std::string& incident : whole_.runtime.plugins().take_incidents()) report.reasons.push_back(std::move(incident));
  return report;
}

}  // namespace keirin
