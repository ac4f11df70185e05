// SPDX-License-Identifier: Apache-2.0
//
// How a chain is decided: one run that times the segments, one that decides each where it stands in the run, on the tensors that it
// is given there, and one race of the chain against eager.
#include "core/api/chain.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "core/api/trial.h"
#include "core/cache/cache.h"
#include "core/eager/tensor_services.h"
#include "core/host/background.h"
#include "core/host/plugins.h"
#include "core/tune/race.h"
#include "core/tune/verify.h"

namespace keirin {
namespace {

using Tensors = std::vector<TensorRef>;

constexpr double kLeastGain = 0.02;
// A segment of less than this share of a call is left to eager: what it could gain is no part of what a race can see, and each one
// costs a decision.
constexpr double kLeastShare = 0.005;
// New sizes of one segment that one run decides for: a loop may meet another one in each round.
constexpr size_t kMostNewSizes = 4;
constexpr uint64_t kConfirmNs = 4'000'000'000;  // as for whole models

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

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
    case DType::k_i64: return pt2::Number(*static_cast<const int64_t*>(tensor->data()));
    case DType::k_f64: return pt2::Number(*static_cast<const double*>(tensor->data()));
    case DType::k_bool: return pt2::Number(*static_cast<const bool*>(tensor->data()));
    default: return std::nullopt;
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

int64_t process_bytes(const Session::Impl& s) {
  if (s.device.kind != Device::kCpu) return (int64_t{512} << 20) + s.weights.storage_bytes();
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * sysconf(_SC_PAGE_SIZE);
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
  double seconds = 0;   // in eager, all its runs of one call
  int runs = 0;         // of one call
  size_t new_sizes = 0;
  std::vector<std::shared_ptr<const Sized>> met;
  std::vector<std::string> refusals;  // why nothing could be decided, by sizes
};

// Lets eager run and looks at the clock.
class Chain::Timing final : public SegmentRunner {
 public:
  explicit Timing(Chain& chain) : chain_(chain) {}
  bool wants(size_t) override {
    start_ = now_s();
    return false;
  }
  Result<bool> answer(size_t, const SegmentInputs&, SegmentResults&) override { return false; }
  void called(size_t segment) override {
    Part& part = *chain_.parts_[segment];
    part.seconds += now_s() - start_;
    ++part.runs;
  }

 private:
  Chain& chain_;
  double start_ = 0;
};

// Decides for what it is asked about, and lets eager answer.
class Chain::Deciding final : public SegmentRunner {
 public:
  Deciding(Chain& chain, double call_seconds, bool other_branches)
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
}
Chain::~Chain() = default;

bool Chain::knows(size_t segment, const SegmentInputs& inputs) const {
  const auto now = parts_[segment]->sized.now();
  return std::any_of(now->begin(), now->end(), [&](const auto& sized) {
    return sized->numbers == inputs.numbers && sized->session->find(inputs.tensors) != nullptr;
  });
}

Result<bool> Chain::answer(size_t segment, const SegmentInputs& inputs, SegmentResults& results) {
  const auto now = parts_[segment]->sized.now();
  for (const auto& sized : *now) {
    if (sized->numbers != inputs.numbers) continue;
    const std::shared_ptr<const keirin::Decision> decision = sized->session->find(inputs.tensors);
    if (!decision) continue;
    if (!decision->call || !decision->guard->breaker.admits()) return false;
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
        for (std::string& reason : std::exchange(report.reasons, {})) out.push_back("segment " + segments_.all[i].name + " " + reason);
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
      if (!outputs[i]) return Status(Code::k_unsupported, "a result is no tensor");
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
    std::erase_if(list, [&](const auto& old) { return old->numbers == inputs.numbers && old->session->find(inputs.tensors); });
    if (list.size() >= static_cast<size_t>(whole_.options.max_shapes)) list.erase(list.begin());
    list.push_back(decided);
  });
  note(decided);
  const auto all = part.sized.now();
  part.has_plans = std::any_of(all->begin(), all->end(), [](const auto& each) {
    const auto decisions = each->session->table.now();
    return std::any_of(decisions->begin(), decisions->end(), [](const auto& decision) { return static_cast<bool>(decision->call); });
  });
}

// One decision about the chain as a whole.
class Chain::Decision {
 public:
  Decision(Chain& chain, const Tensors& inputs)
      : chain_(chain), s_(chain.whole_), services_(s_.runtime.tensors()), inputs_(inputs) {
    report_.model = s_.name;
    report_.device = device_name(s_.device);
    report_.mode = s_.options.mode;
    report_.threads = services_.num_threads();
    std::vector<TensorSpec> specs;
    for (const TensorRef& t : inputs) {
      specs.push_back(spec_of(*t));
      report_.inputs.push_back(spec_text(specs.back()));
    }
    report_.sizes = s_.free_sizes(specs);
    specs_ = std::move(specs);
  }

  Result<ModelReport> run() {
    // Its error is the caller's answer. Each input is a copy: what shares memory with what is for the calls to find out.
    Tensors apart;
    for (const TensorRef& input : inputs_) {
      KRN_TRY_LET(TensorRef copy, services_.clone(input));
      apart.push_back(std::move(copy));
    }
    KRN_TRY(s_.eager->observe(apart, seen_).status());
    eager_process_bytes_ = process_bytes(s_);
    KRN_TRY(trials_.save());
    double start = now_s();
    KRN_TRY(time_segments());
    KRN_TRY(decide_segments());
    report_.stage_seconds.emplace_back("segments", now_s() - start);
    eager_ = {"eager", "", "baseline", "", true};
    count();
    if (has_plans_) {
      start = now_s();
      const Status status = s_.options.verify ? verify() : Status();
      report_.stage_seconds.emplace_back("verify", now_s() - start);
      if (!status.ok()) {
        segments_.reason = status.code() == Code::k_wrong_result ? "wrong_result" : "not_verified";
        segments_.note = status.message().what;
      } else {
        segments_.verified = true;
      }
    } else {
      segments_.reason = "not_worth";
      segments_.note = "no segment is faster compiled";
    }
    measure_memory();
    start = now_s();
    KRN_TRY(race_both());
    report_.stage_seconds.emplace_back("race", now_s() - start);
    finish();
    return report_;
  }

 private:
  // A run of eager on copies of what it writes, and state as it was before.
  Status run_eager(SegmentRunner& runner) {
    KRN_TRY_LET(const Tensors own, trials_.own_copies(inputs_));
    const Status status = s_.eager->run(own, &runner).status();
    KRN_TRY(trials_.restore());
    return status;
  }

  Status time_segments() {
    Timing timing(chain_);
    for (int i = 0; i < 2; ++i) {  // the first one warms up
      for (const auto& part : chain_.parts_) part->seconds = 0, part->runs = 0;
      const double start = now_s();
      KRN_TRY(run_eager(timing));
      call_seconds_ = now_s() - start;
    }
    return {};
  }

  Status decide_segments() {
    for (const auto& part : chain_.parts_) part->new_sizes = 0, part->met.clear(), part->refusals.clear();
    KRN_TRY_LET(const RandomState before, random_state(s_.device));
    // Data that a branch is not for costs an error on the CPU; on a GPU it may cost the device.
    Deciding deciding(chain_, call_seconds_, s_.device.kind == Device::kCpu);
    KRN_TRY(run_eager(deciding));
    return set_random_state(s_.device, before);
  }

  // What the segments come to, in numbers and rows.
  void count() {
    for (size_t i = 0; i < chain_.parts_.size(); ++i) {
      const pt2::Segment& segment = chain_.segments_.all[i];
      const Part& part = *chain_.parts_[i];
      const double share = call_seconds_ > 0 ? part.seconds / call_seconds_ : 0;
      SegmentReport row{segment.name, "", "eager", segment.operators, 0, part.runs, share, 1, ""};
      if (part.met.empty()) {
        row.note = !part.refusals.empty()                  ? part.refusals.front()
                   : part.runs == 0                        ? "the inputs do not come by"
                   : part.seconds < kLeastShare * call_seconds_ ? "too short to matter"
                                                           : "";
        report_.nodes += segment.operators;
        report_.segments.push_back(std::move(row));
        continue;
      }
      int nodes = segment.operators, compiled = 0;
      for (const auto& sized : part.met) {
        const ModelReport& r = sized->report;
        row.sizes = sized->sizes;
        row.choice = r.chosen;
        row.nodes = r.nodes > 0 ? r.nodes : segment.operators;
        row.nodes_compiled = is_compiled(r) ? r.nodes_compiled : 0;
        row.speedup = r.disturbed.empty() ? r.speedup : 1;
        row.note = !r.disturbed.empty() ? "disturbed: " + r.disturbed : is_compiled(r) || r.reasons.empty() ? "" : r.reasons.front();
        report_.segments.push_back(row);
        nodes = row.nodes;
        compiled = std::max(compiled, row.nodes_compiled);
        report_.nodes_opaque += sized == part.met.front() ? r.nodes_opaque : 0;
        report_.kernels_generated += r.kernels_generated;
        report_.compile_seconds += r.compile_seconds;
        segments_.compile_seconds += r.compile_seconds;
        segments_.max_error = std::max(segments_.max_error, r.max_error);
        segments_.eager_error = std::max(segments_.eager_error, r.eager_error);
        if (is_compiled(r)) {
          has_plans_ = true;
          if (report_.plugin.empty()) report_.plugin = r.plugin;
          plan_bytes_ += r.peak_bytes;
          uncovered_ -= sized == part.met.front() ? share * (1 - r.eager_share) : 0;
        }
      }
      report_.nodes += nodes;
      nodes_compiled_ += compiled;
    }
    int in_segments = 0;
    for (const pt2::Segment& segment : chain_.segments_.all) in_segments += segment.operators;
    report_.nodes += chain_.segments_.operators - in_segments;
    segments_.name = "segments";
    segments_.plugin = report_.plugin;
  }

  static bool is_compiled(const ModelReport& r) { return r.chosen.rfind("eager", 0) != 0; }

  Status verify() {
    const CallFn eager = [this](const Tensors& inputs) { return s_.eager->run(inputs); };
    const CallFn chained = [this](const Tensors& inputs) { return chain_.call(inputs); };
    KRN_TRY_LET(Trial theirs, trials_.run(eager, inputs_));
    KRN_TRY_LET(Trial ours, trials_.run(chained, inputs_));
    const size_t num_outputs = s_.eager->num_outputs();
    const auto wrong = [](std::string what) { return Status(Code::k_wrong_result, std::move(what)); };
    if (ours.numbers.size() != theirs.numbers.size()) return wrong("it returns another number of tensors than eager");
    if (const std::string difference = trials_.other_difference(theirs, ours, num_outputs); !difference.empty()) return wrong(difference);
    std::vector<std::string> names = trials_.names(num_outputs);
    Tensors referee;
    if (Result<RefereeAnswer> answer = trials_.referee(inputs_); answer.ok()) referee = std::move(answer->numbers);
    for (size_t i = theirs.numbers.size(); i-- > 0;) {
      const TensorRef &a = theirs.numbers[i], &b = ours.numbers[i];
      if (!a != !b || (a && !same_form(*a, *b))) return wrong(names[i] + " has other sizes, strides or another dtype than eager's");
      if (a) continue;
      for (Tensors* list : {&theirs.numbers, &ours.numbers}) list->erase(list->begin() + static_cast<ptrdiff_t>(i));
      names.erase(names.begin() + static_cast<ptrdiff_t>(i));
      if (i < referee.size()) referee.erase(referee.begin() + static_cast<ptrdiff_t>(i));
    }
    // In fp64 a value may fall on the other side of a limit and the run take other sizes. Each segment was judged by fp64 on its own
    // inputs; the chain is then compared with eager.
    bool comparable = referee.size() == theirs.numbers.size();
    for (size_t i = 0; comparable && i < referee.size(); ++i) comparable = referee[i] && same_sizes(*referee[i], *theirs.numbers[i]);
    if (comparable) {
      // What each segment may add to eager's error adds up over the chain.
      JudgeOptions judging{.k = 4, .k_narrow = 6, .strict = s_.options.numerics == Numerics::kStrict, .names = names, .must_vary = 0};
      if (s_.options.numerics == Numerics::kFast) judging.error_budget = s_.options.error_budget;
      KRN_TRY_LET(const Judgement judgement, judge(referee, theirs.numbers, ours.numbers, services_, judging));
      segments_.max_error = judgement.max_error;
      segments_.eager_error = eager_.eager_error = eager_.max_error = judgement.eager_error;
      return judgement.right ? Status() : wrong(judgement.reason);
    }
    bool narrow = false;
    for (const TensorRef& t : theirs.numbers) narrow |= t->dtype() == DType::k_f16 || t->dtype() == DType::k_bf16;
    KRN_TRY_LET(const std::string difference,
                find_difference(theirs.numbers, ours.numbers, services_, {narrow ? 3e-2 : 1e-4, true}, names));
    return difference.empty() ? Status() : wrong(difference);
  }

  static bool same_sizes(const Tensor& a, const Tensor& b) { return a.rank() == b.rank() && std::equal(a.sizes(), a.sizes() + a.rank(), b.sizes()); }
  static bool same_form(const Tensor& a, const Tensor& b) {
    if (a.dtype() != b.dtype() || !same_sizes(a, b)) return false;
    if (std::find(a.sizes(), a.sizes() + a.rank(), 0) != a.sizes() + a.rank()) return true;
    for (int64_t d = 0; d < a.rank(); ++d)
      if (a.sizes()[d] > 1 && a.strides()[d] != b.strides()[d]) return false;
    return true;
  }

  int64_t measure_peak(const CallFn& call) {
    auto own = trials_.own_copies(inputs_);
    if (!own.ok()) return 0;
    services_.reset_peak(s_.device);
    const int64_t before = services_.peak_bytes(s_.device);
    const bool ran = call(*own).ok();
    return ran ? std::max<int64_t>(services_.peak_bytes(s_.device) - before, 0) : 0;
  }

  void measure_memory() {
    eager_.peak_bytes = measure_peak([this](const Tensors& inputs) { return s_.eager->run(inputs); });
    if (segments_.verified) {
      segments_.peak_bytes = plan_bytes_ + measure_peak([this](const Tensors& inputs) { return chain_.call(inputs); });
      const double allowed = (1 + s_.options.memory_limit) * static_cast<double>(eager_process_bytes_ + eager_.peak_bytes);
      if (static_cast<double>(eager_process_bytes_ + segments_.peak_bytes) > allowed) {
        segments_.reason = "memory";
        segments_.note = fmt::format("the plans of its segments would need {} MiB", segments_.peak_bytes >> 20);
        segments_.verified = false;
      }
    }
    (void)trials_.restore();
  }

  Status race_both() {
    KRN_TRY_LET(const Tensors raced, trials_.own_copies(inputs_));
    std::vector<Runner> runners = {{"eager", [&]() -> Status { return s_.eager->run(raced).status(); }, eager_.peak_bytes}};
    if (segments_.verified) runners.push_back({"segments", [&]() -> Status { return chain_.call(raced).status(); }, segments_.peak_bytes});
    RaceOptions options;
    options.threshold = kLeastGain;
    options.limit_ns = static_cast<uint64_t>(s_.options.race_seconds * 1e9);
    if (s_.device.kind != Device::kCpu) options.wait = [this] { return services_.synchronize(s_.device); };
    if (Cache* cache = s_.runtime.cache(); cache && cache->usable()) options.lock_path = cache->dir() + "/lock/race-" + device_name(s_.device);
    options.between = pass_gate;
    ProcessInterference interference(s_.options.run_in != "worker" || s_.device.kind != Device::kCpu);
    options.interference = s_.options.interference ? s_.options.interference : &interference;
    if (s_.options.measure_again) options.confirm_ns = std::min<uint64_t>(kConfirmNs, options.limit_ns / 4);
    if (s_.options.force == "compiled" && segments_.verified) options.one_must_race.push_back(1);
    KRN_TRY_LET(const RaceSheet sheet, race(runners, 0, options));
    KRN_TRY(trials_.restore());
    const auto take = [&](const RaceRow& row, CandidateReport& to) {
      to.milliseconds = row.ns / 1e6;
      to.gain = row.gain, to.gain_low = row.gain_low, to.gain_high = row.gain_high;
      to.blocks = row.blocks;
      to.note = row.note;
    };
    take(sheet.rows[0], eager_);
    report_.chosen = "eager";
    if (segments_.verified) {
      const RaceRow& row = sheet.rows[1];
      take(row, segments_);
      switch (row.outcome) {
        case RaceOutcome::kAccept: segments_.reason = "faster"; break;
        case RaceOutcome::kReject: segments_.reason = row.gain < 1 ? "slower" : "inside_noise"; break;
        case RaceOutcome::kDisturbed: segments_.reason = "disturbed"; break;
        case RaceOutcome::kCancelled:
        case RaceOutcome::kScreened: segments_.reason = "not_raced"; break;
        case RaceOutcome::kFailed: segments_.reason = "compile_failed", segments_.note = row.status.message().what; break;
        default: segments_.reason = "inside_noise"; break;
      }
      if (row.baseline_ns > 0) eager_.milliseconds = row.baseline_ns / 1e6;
      if (sheet.winner == 1) report_.chosen = "segments";
      if (segments_.reason == "disturbed") report_.disturbed = row.note.empty() ? sheet.disturbed : row.note;
    } else {
      report_.disturbed = sheet.disturbed;
    }
    if (!report_.disturbed.empty()) {
      // Each segment that has a plan won a race of its own, so that eager is no better known here than the chain that answered before.
      report_.chosen = "eager";
      eager_.milliseconds = segments_.milliseconds = 0;
      report_.reasons.push_back("the race was disturbed: " + report_.disturbed + "; eager answers");
    }
    if (s_.options.force == "compiled" && segments_.verified) report_.chosen = "segments", segments_.reason = "forced";
    return {};
  }

  void finish() {
    const bool chained = report_.chosen == "segments";
    CallGuard::Writes writes{seen_.written_inputs, {}, {}};
    for (const size_t i : seen_.written_weights) writes.weights.push_back(s_.weights[i].tensor);
    for (size_t i = 0; i < s_.weights.size(); ++i) writes.all_weights.push_back(s_.weights[i].tensor);
    auto decision = std::make_shared<keirin::Decision>(
        keirin::Decision{chained ? CallGuard(inputs_, s_.device, numeric_modes(s_.device), writes) : CallGuard(specs_), {}, {}, true});
    if (chained) {
      decision->call = [&chain = chain_](const Tensors& inputs) { return chain.call(inputs); };
      decision->guard = std::make_shared<PlanGuard>();
    }
    s_.publish(std::move(decision));
    report_.eager_ms = eager_.milliseconds;
    report_.compiled_ms = segments_.milliseconds;
    report_.chosen_ms = chained ? segments_.milliseconds : eager_.milliseconds;
    report_.eager_peak_bytes = eager_.peak_bytes;
    report_.peak_bytes = chained ? segments_.peak_bytes : eager_.peak_bytes;
    report_.max_error = chained ? segments_.max_error : eager_.max_error;
    report_.eager_error = eager_.eager_error;
    report_.verified = !chained || segments_.verified;
    report_.nodes_compiled = nodes_compiled_;
    report_.eager_share = chained ? std::clamp(uncovered_, 0.0, 1.0) : 1;
    if (chained && report_.disturbed.empty() && segments_.gain > 0) {
      report_.speedup = segments_.gain, report_.speedup_low = segments_.gain_low, report_.speedup_high = segments_.gain_high;
      if (const double saved = (report_.eager_ms - report_.chosen_ms) / 1e3; saved > 0)
        report_.pays_back_after_calls = static_cast<int64_t>(report_.compile_seconds / saved) + 1;
    }
    if (!chained && report_.disturbed.empty())
      report_.reasons.push_back("segments " + segments_.reason + (segments_.note.empty() ? "" : ": " + segments_.note));
    report_.reasons.push_back(fmt::format("sizes or branches depend on data: {} segments between {} places where the host looks at a value",
                                          chain_.segments_.all.size(), chain_.segments_.borders));
    for (size_t i = 0; i < chain_.parts_.size(); ++i)
      for (const std::string& refusal : chain_.parts_[i]->refusals)
        report_.reasons.push_back("segment " + chain_.segments_.all[i].name + " runs in eager: " + refusal);
    report_.candidates = {eager_, segments_};
  }

  Chain& chain_;
  Session::Impl& s_;
  TensorServices& services_;
  const Tensors& inputs_;
  std::vector<TensorSpec> specs_;
  ObservedRun seen_;
  Trials trials_{s_, seen_};
  ModelReport report_;
  CandidateReport eager_, segments_;
  double call_seconds_ = 0;
  double uncovered_ = 1;  // share of eager's time that no plan covers
  bool has_plans_ = false;
  int nodes_compiled_ = 0;
  int64_t plan_bytes_ = 0, eager_process_bytes_ = 0;
};

Result<ModelReport> Chain::decide(const Tensors& inputs) {
  KRN_TRY_LET(ModelReport report, Decision(*this, inputs).run());
  const int eager = report.nodes - report.nodes_compiled;
  if (eager > 0 && whole_.options.fallback != Fallback::kAllow) {
    const std::string what = fmt::format("{} of {} operators run eagerly, {:.0f} % of a call's time", eager, report.nodes, report.eager_share * 100);
    const std::string why = report.reasons.empty() ? std::string() : report.reasons.front();
    if (whole_.options.fallback == Fallback::kForbid)
      return Status(Code::k_unsupported, {"fallback is forbidden and " + what, whole_.name, "calls are answered as before", why});
    report.reasons.insert(report.reasons.begin(), "warning: " + what + (why.empty() ? "" : ": " + why));
  }
  for (std::string& incident : whole_.runtime.plugins().take_incidents()) report.reasons.push_back(std::move(incident));
  return report;
}

}  // namespace keirin
