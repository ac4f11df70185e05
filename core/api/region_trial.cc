// SPDX-License-Identifier: Apache-2.0
#include "core/api/region_trial.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <optional>

#include "abi/planted.h"
#include "core/eager/program/library_settings.h"
#include "core/eager/rows/graph_calls.h"
#include "core/eager/tensor_services.h"
#include "core/ir/rows.h"
#include "core/tune/elements.h"
#include "core/tune/inputs.h"
#include "core/tune/sensitivity.h"
#include "core/tune/verify.h"

namespace keirin {
namespace {

using Tensors = Deciding::Tensors;

constexpr int kMostRounds = 6;        // of building again: each finds what the one before hid
constexpr int kRoundsByOperator = 2;  // in which only what is found wrong is kept from rounding; then all of a wrong region
constexpr double kMostSeconds = 30;   // of looking for what is wrong in one plan; from then on what is wrong is cut unlooked at
constexpr int kTimesHalved = 3;       // in each round
constexpr const char* kShowsNothing = "eager itself is far from fp64 in it: not to be judged";
constexpr size_t kMostParts = 200;    // that are compiled for it

// A worker that somebody killed, memory that ran out, an end that was asked for: nothing is shown by it, least of all a wrong answer, which
// would be remembered for good.
bool is_machines_fault(const Status& status) { return status.code() == Code::k_exhausted || status.code() == Code::k_cancelled; }

// One graph's code alone on tensors of its inputs: a value for every output, and nothing of the caller's is written. State is put back.
Result<Tensors> run_alone(Deciding& d, const Graph& graph, const std::shared_ptr<Executable>& executable,
                          const std::vector<ValueId>& operands, const Tensors& inputs) {
  PlanStep step;
  step.name = "alone";
  step.executable = executable;
  step.operands = operands;
  Tensors own = inputs;
  bool writes_state = false;
  for (const Output& output : graph.outputs) {
    step.results.push_back(output.value);
    step.targets.push_back(output.updates);
    if (output.updates == kNone) continue;
    const Value& target = graph.values[output.updates];
    writes_state |= target.kind == ValueKind::kState;
    if (target.kind == ValueKind::kInput) {
      KRN_TRY_LET(own.at(target.index), d.services.clone(inputs.at(target.index)));
    }
  }
  step.num_ops = static_cast<int>(graph.ops.size());
  std::vector<PlanStep> steps;
  steps.push_back(std::move(step));
  KRN_TRY_LET(const std::unique_ptr<Plan> plan, Plan::make(graph, std::move(steps), d.prepared->constants, d.services, d.session.device));
  Result<Tensors> outputs = plan->run(own);
  if (!outputs.ok()) {
    (void)d.trials.restore();
    return outputs.status();
  }
  Tensors all;
  size_t user = 0;
  for (const Output& output : graph.outputs) {
    if (output.updates == kNone) {
      all.push_back(outputs->at(user++));
      continue;
    }
    const Value& target = graph.values[output.updates];
    KRN_TRY_LET(TensorRef after,
                d.services.clone(target.kind == ValueKind::kInput ? own.at(target.index) : d.prepared->constants.at(target.index)));
    all.push_back(std::move(after));
  }
  if (writes_state) KRN_TRY(d.trials.restore());
  return all;
}

struct Answers {
  Tensors eager, referee, ours;
};

// The same elements in the strides of `like`; itself where sizes or dtype are others.
Result<TensorRef> laid_out_as(const Tensor& like, const TensorRef& tensor, TensorServices& services) {
  const TensorSpec spec = spec_of(like);
  const TensorSpec own = spec_of(*tensor);
  if (own.sizes != spec.sizes || own.dtype != spec.dtype || own.strides == spec.strides) return tensor;
  KRN_TRY_LET(TensorRef out, services.allocate(spec));
  KRN_TRY(services.copy(out, tensor));
  return out;
}

// Of what the graph writes, what one of them wrote: a state is large, and what a call writes in it small.
Status cut_to_written(Deciding& d, const Graph& graph, const Tensors& inputs, Answers* answers) {
  for (size_t k = 0; k < graph.outputs.size(); ++k) {
    if (graph.outputs[k].updates == kNone) continue;
    const Value& target = graph.values[graph.outputs[k].updates];
    const TensorRef& before = target.kind == ValueKind::kInput ? inputs.at(target.index) : d.prepared->constants.at(target.index);
    KRN_TRY_LET(Tensors written, changed_elements(before, {answers->eager[k], answers->referee[k], answers->ours[k]}));
    answers->eager[k] = std::move(written[0]), answers->referee[k] = std::move(written[1]), answers->ours[k] = std::move(written[2]);
  }
  return {};
}

Result<Tensors> in_fp64(Deciding& d, const Graph& graph, const Tensors& inputs) {
  return evaluate(graph, d.prepared->captured.calls, inputs, d.prepared->constants, {d.session.device, DType::k_f64});
}

struct PartVerdict {
  std::string wrong;     // in words; empty if nothing is
  bool decisive = true;  // eager is as near to fp64 in it as its dtypes explain
};

// How far the outputs move in fp64 when all that the graph is given is off by its rounding, and sums round as well. Where terms cancel (the
// gradient of a bias in front of a norm, of a key's bias in front of a softmax: the true one is nothing) that is far beside the output and
// little beside the terms. What moves further than roundings of the terms do makes much of little, and explains nothing: 0.
Result<std::vector<Movement>> movements_of_part(Deciding& d, const Graph& graph, const Tensors& border, const Tensors& referee,
                                                double bound) {
  double terms = 0;
  const auto look = [&](const TensorRef& tensor) -> Status {
    if (!tensor || !is_float(tensor->dtype())) return {};
    KRN_TRY_LET(const double largest, largest_magnitude(tensor, d.services));
    terms = std::max(terms, largest);
    return {};
  };
  for (const Tensors* list : {&border, &referee})
    for (const TensorRef& tensor : *list) KRN_TRY(look(tensor));
  Tensors kept = referee;  // what is written is cut to where it was
  for (size_t k = 0; k < graph.outputs.size(); ++k)
    if (graph.outputs[k].updates != kNone) kept[k] = nullptr;
  KRN_TRY_LET(std::vector<Movement> moved, movements(kept, d.services, [&](uint32_t seed) -> Result<Tensors> {
                Tensors off;
                for (size_t i = 0; i < border.size(); ++i) {
                  KRN_TRY_LET(off.emplace_back(), off_by_roundings(border[i], d.services, seed * border.size() + i));
                }
                return in_fp64(d, graph, off);
              }));
  const double sums = roundings_of_sums(graph);
  for (Movement& each : moved) each.largest = each.largest * sums <= bound * terms ? each.largest * sums : 0;
  return moved;
}

// The answers to one graph, which was given `border`.
Result<PartVerdict> judge_part(Deciding& d, const Graph& graph, const Tensors& border, Answers answers, bool all_outputs) {
  JudgeOptions judging = judge_options(graph, d.session.options.numerics, d.session.options.error_budget);
  judging.must_vary = 0;
  const Nearness nearness{eager_bound(graph, allows_tf32(d.session.device)), false};
  std::optional<std::vector<Movement>> moved;
  const auto is_explained = [&](size_t k, const TensorRef& numbers) -> Result<bool> {
    if (!moved) {
      KRN_TRY_LET(moved, movements_of_part(d, graph, border, answers.referee, nearness.bound));
    }
    KRN_TRY_LET(const std::string why, unexplained({&answers.referee[k], 1}, {&numbers, 1}, {&(*moved)[k], 1}, d.services));
    return why.empty();
  };
  PartVerdict verdict;
  for (size_t k = 0; k < graph.outputs.size(); ++k) {
    if (!all_outputs && !is_float(graph.type(graph.outputs[k].value).dtype)) continue;
    if (!answers.eager[k]) continue;
    KRN_TRY_LET(const std::string far, find_difference({&answers.referee[k], 1}, {&answers.eager[k], 1}, d.services, nearness));
    if (!far.empty() && verdict.decisive) {
      KRN_TRY_LET(verdict.decisive, is_explained(k, answers.eager[k]));
    }
    if (!verdict.wrong.empty()) continue;
    // Strides inside a plan are its own affair; what a caller sees of them is judged with the whole.
    KRN_TRY_LET(const TensorRef ours, laid_out_as(*answers.eager[k], answers.ours[k], d.services));
    judging.names = {"its output " + std::to_string(k)};
    KRN_TRY_LET(const Judgement judgement, judge({&answers.referee[k], 1}, {&answers.eager[k], 1}, {&ours, 1}, d.services, judging));
    if (judgement.right || KRN_PLANTED(region_unjudged)) continue;
    bool explained = false;
    if (!far.empty() && only_numbers_differ(judgement, judging)) {  // where eager is near, nobody else need be far
      KRN_TRY_LET(explained, is_explained(k, ours));
    }
    if (!explained) verdict.wrong = judgement.reason;
  }
  return verdict;
}

std::string name_of(const Graph& graph, OpId id) {
  const Op& op = graph.ops[id];
  return std::string(op_name(op.code)) + (op.origin.empty() ? "" : " (" + op.origin.str() + ")");
}

// Which ops of one region make it wrong, or show nothing.
class Search {
  using Ops = std::vector<OpId>;

 public:
  Search(Deciding& d, const BuiltPlan& plan, const BuiltRegion& region, const Tensors& inputs, double end)
      : d_(d), plan_(plan), graph_(region.cut.graph), inputs_(inputs), end_(end) {}

  struct Culprit {
    Hash hash{};             // judged_hash
    std::string what;        // "relu (layer1.act): its output 0: ..."; empty: a smaller part of it is in the list
    bool rounds = false;     // a product that is tried again with its operands as they are
  };

  // `whole` is what is wrong with the region. Empty if the time was too short.
  Result<std::vector<Culprit>> run(const std::string& whole) {
    KRN_TRY_LET(const Ops ops, compute_values());
    KRN_TRY(narrow(ops, whole).status());
    return std::move(found_);
  }

  // The region, its halves and so on: the judged_hash of each, so that plans have it in 2^kTimesHalved parts.
  std::vector<Hash> cut() const {
    std::vector<Hash> out{judged_hash(graph_, d_.session)};
    std::vector<Ops> parts{all_ops()};
    for (int times = 1; times < kTimesHalved; ++times) {
      std::vector<Ops> smaller;
      for (const Ops& part : parts)
        if (part.size() > 1) std::ranges::copy(halves_of(part), std::back_inserter(smaller));
      for (const Ops& part : smaller) out.push_back(judged_hash(part_of(part).graph, d_.session));
      parts = std::move(smaller);
    }
    return out;
  }

  // The region and those of its halves, their halves and so on, in which eager is far from fp64: the judged_hash of each, so that no plan
  // has them. In what then is left of the region it is near, or was not looked at for lack of time.
  Result<std::vector<Hash>> too_large() {
    if (now_s() > end_) return cut();
    KRN_TRY_LET(const Ops ops, compute_values());
    std::vector<Hash> out{judged_hash(graph_, d_.session)};
    KRN_TRY(halve(ops, out));
    return out;
  }

 private:
  // Of the region, as eager computes them; its ops.
  Result<Ops> compute_values() {
    Graph all = graph_;
    all.outputs.clear();
    for (const Op& op : all.ops)
      for (ValueId v : op.results) all.outputs.push_back({v, kNone, kNone});
    KRN_TRY_LET(const Tensors results,
                evaluate(all, d_.prepared->captured.calls, inputs_, d_.prepared->constants, {d_.session.device, std::nullopt}));
    values_.resize(graph_.values.size());
    for (size_t k = 0; k < results.size(); ++k) values_[all.outputs[k].value] = results[k];
    for (ValueId v : graph_.inputs) values_[v] = inputs_.at(graph_.values[v].index);
    return all_ops();
  }

  Ops all_ops() const {
    Ops ops(graph_.ops.size());
    std::iota(ops.begin(), ops.end(), OpId{0});
    return ops;
  }
  // As a plan is cut in two that is not to have them together.
  static std::array<Ops, 2> halves_of(const Ops& ops) {
    const auto middle = ops.begin() + static_cast<ptrdiff_t>(ops.size() / 2);
    return {Ops(ops.begin(), middle), Ops(middle, ops.end())};
  }

  Tensors values_of(const RegionGraph& part, const std::vector<ValueId>& of) const {
    Tensors out;
    for (ValueId v : of) out.push_back(values_[part.values[v]]);
    return out;
  }
  Tensors eager_of(const RegionGraph& part) const {
    Tensors out;
    for (const Output& output : part.graph.outputs) out.push_back(values_[part.values[output.value]]);
    return out;
  }

  Status halve(const Ops& ops, std::vector<Hash>& out) {
    if (ops.size() < 2) return {};
    for (const Ops& half : halves_of(ops)) {
      if (now_s() > end_) return {};
      const RegionGraph part = part_of(half);
      if (part.graph.outputs.empty()) continue;
      const Tensors inputs = values_of(part, part.graph.inputs);
      Answers answers{eager_of(part), {}, eager_of(part)};
      KRN_TRY_LET(answers.referee, in_fp64(d_, part.graph, inputs));
      KRN_TRY(cut_to_written(d_, part.graph, inputs, &answers));
      KRN_TRY_LET(const PartVerdict verdict, judge_part(d_, part.graph, inputs, std::move(answers), true));
      if (verdict.decisive) continue;
      out.push_back(judged_hash(part.graph, d_.session));
      KRN_TRY(halve(half, out));
    }
    return {};
  }

  RegionGraph part_of(const Ops& ops) const {
    std::vector<uint8_t> inside(graph_.ops.size(), 0), escapes(graph_.values.size(), 0);
    for (OpId op : ops) inside[op] = 1;
    for (OpId op = 0; op < graph_.ops.size(); ++op)
      for (ValueId v : graph_.ops[op].operands)
        if (v != kNone && !inside[op]) escapes[v] = 1;
    for (const Output& output : graph_.outputs) escapes[output.value] = 1;
    return extract_region(graph_, ops, escapes, {});
  }

  // Empty: the part alone is right, or cannot be tried.
  Result<std::string> try_part(const Ops& ops) {
    if (now_s() > end_ || ++parts_ > kMostParts) return Status(Code::k_timeout, "too long");
    const RegionGraph part = part_of(ops);
    if (part.graph.outputs.empty()) return std::string();
    Result<BuiltPart> built = build_part(d_.session, *d_.prepared, *plan_.choice.device, part.graph, plan_.choice.candidate);
    if (!built.ok()) return std::string();
    const Tensors inputs = values_of(part, part.graph.inputs);
    Answers answers{eager_of(part), {}, {}};
    KRN_TRY_LET(answers.referee, in_fp64(d_, part.graph, inputs));
    Result<Tensors> ours = run_alone(d_, part.graph, built->executable, built->inputs, inputs);
    if (!ours.ok() && is_machines_fault(ours.status())) return ours.status();
    if (!ours.ok()) return std::string(ours.status().message().what);
    answers.ours = std::move(*ours);
    KRN_TRY(cut_to_written(d_, part.graph, inputs, &answers));
    KRN_TRY_LET(PartVerdict verdict, judge_part(d_, part.graph, inputs, std::move(answers), true));
    return std::move(verdict.wrong);
  }

  // `ops`, ascending, are wrong, and `why` says how. Whether one of them is wrong alone.
  Result<bool> narrow(const Ops& ops, const std::string& why) {
    if (ops.size() == 1) {
      add({judged_hash(graph_, ops[0], d_.session), name_of(graph_, ops[0]) + ": " + why, may_round(d_.session, graph_, ops[0])});
      return true;
    }
    const auto [first, second] = halves_of(ops);
    KRN_TRY_LET(const std::string first_wrong, try_part(first));
    KRN_TRY_LET(const std::string second_wrong, try_part(second));
    const size_t before = found_.size();
    bool alone = false;
    for (const auto& [half, wrong] : {std::pair(&first, &first_wrong), std::pair(&second, &second_wrong)})
      if (!wrong->empty()) {
        KRN_TRY_LET(const bool found, narrow(*half, *wrong));
        alone |= found;
      }
    if (alone) return true;
    // Wrong together, and so they are with more around them: a plan begins with the largest part.
    const size_t found = found_.size();
    for (OpId op : ops)
      if (may_round(d_.session, graph_, op)) add({judged_hash(graph_, op, d_.session), name_of(graph_, op) + " with others: " + why, true});
    if (found_.size() > found) return false;
    const std::string range =
        std::to_string(ops.size()) + " operators together, from " + name_of(graph_, ops.front()) + " to " + name_of(graph_, ops.back());
    add({judged_hash(part_of(ops).graph, d_.session), found_.size() == before ? range + ": " + why : std::string()});
    return false;
  }

  void add(Culprit culprit) {
    for (const Culprit& known : found_)
      if (known.hash == culprit.hash) return;
    found_.push_back(std::move(culprit));
  }

  Deciding& d_;
  const BuiltPlan& plan_;
  const Graph& graph_;
  const Tensors& inputs_;
  const double end_;
  std::vector<TensorRef> values_;  // by value of the region, as eager computes them
  std::vector<Culprit> found_;
  size_t parts_ = 0;
};

}  // namespace

Result<std::vector<RegionVerdict>> try_regions(Deciding& d, const BuiltPlan& plan, const Tensors& inputs, bool all_outputs) {
  const Graph& graph = d.prepared->graph;
  const std::vector<PlanStep>& steps = plan.plan->steps();
  std::vector<TensorRef> values(graph.values.size());
  std::vector<size_t> last_use(graph.values.size(), 0);
  for (size_t s = 0; s < steps.size(); ++s)
    for (ValueId v : steps[s].operands)
      if (v != kNone) last_use[v] = s;
  for (ValueId v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    if (value.kind == ValueKind::kInput) values[v] = inputs.at(value.index);
    else if (value.kind != ValueKind::kResult) values[v] = d.prepared->constants.at(value.index);
  }
  std::vector<RegionVerdict> verdicts;
  for (size_t s = 0; s < steps.size(); ++s) {
    const PlanStep& step = steps[s];
    const auto region = std::find_if(plan.regions.begin(), plan.regions.end(), [&](const BuiltRegion& r) { return r.step == s; });
    if (region == plan.regions.end()) {
      std::vector<TensorRef> operands, results;
      for (ValueId v : step.operands) operands.push_back(v == kNone ? nullptr : values[v]);
      KRN_TRY(step.eager(operands, results));
      for (size_t r = 0; r < step.results.size() && r < results.size(); ++r) values[step.results[r]] = results[r];
    } else {
      const Graph& part = region->cut.graph;
      RegionVerdict verdict{static_cast<size_t>(region - plan.regions.begin()), {}, true, {}};
      Tensors border;
      for (ValueId v : part.inputs) border.push_back(values[region->cut.values[v]]);
      Answers answers;
      KRN_TRY_LET(answers.eager,
                  evaluate(part, d.prepared->captured.calls, border, d.prepared->constants, {d.session.device, std::nullopt}));
      for (size_t k = 0; k < part.outputs.size(); ++k) values[region->cut.values[part.outputs[k].value]] = answers.eager[k];
      KRN_TRY_LET(answers.referee, in_fp64(d, part, border));
      Result<Tensors> ours = run_alone(d, part, step.executable, region->inputs, border);
      if (!ours.ok() && is_machines_fault(ours.status())) return ours.status();
      if (!ours.ok()) {
        verdict.wrong = ours.status().message().what;
      } else {
        answers.ours = std::move(*ours);
        KRN_TRY(cut_to_written(d, part, border, &answers));
        KRN_TRY_LET(PartVerdict own, judge_part(d, part, border, std::move(answers), all_outputs));
        verdict.wrong = std::move(own.wrong);
        verdict.decisive = own.decisive;
      }
      if (!verdict.wrong.empty() || !verdict.decisive) verdict.inputs = border;
      verdicts.push_back(std::move(verdict));
    }
    for (const std::vector<ValueId>* list : {&step.operands, &step.results})
      for (ValueId v : *list)
        if (v != kNone && graph.values[v].kind == ValueKind::kResult && last_use[v] <= s) values[v] = nullptr;
  }
  return verdicts;
}

// Whether there was an operator of the graph, the plan's or a region's, whose operands may be rounded, which now are not.
static bool keep_all_precise(Deciding& d, Candidate& candidate, const Graph& graph) {
  PluginDevice& device = *candidate.built.choice.device;
  const size_t known = device.known_wrong().size();
  std::string names;
  for (OpId op = 0; op < graph.ops.size(); ++op) {
    if (!may_round(d.session, graph, op)) continue;
    const std::string name = name_of(graph, op);
    device.judged_wrong(judged_hash(graph, op, d.session), "answered wrong: " + name + " with its operands rounded, where eager does not");
    if (device.known_wrong().size() - known <= 3) names += (names.empty() ? "" : ", ") + name;
  }
  const size_t fresh = device.known_wrong().size() - known;
  if (fresh == 0) return false;
  d.report.reasons.push_back(candidate.built.name + ": eager does not round the operands of its products here, and " +
                             candidate.built.plugin + " did: " + names + (fresh > 3 ? ", ..." : "") +
                             "; they are not rounded any more (`keirin cache forgive` lets it try again)");
  return true;
}

static bool is_out(Candidate& candidate, const std::string& why) {
  candidate.call = candidate.own = nullptr;
  candidate.report.verified = false;
  candidate.report.reason = "wrong_result";
  candidate.report.note += (candidate.report.note.empty() ? "" : "; ") + why;
  return false;
}

// Without what is known to be wrong by now. False if nothing is left of it.
static bool build_again(Deciding& d, Candidate& candidate) {
  Result<BuiltPlan> built = build_plan(d.session, *d.prepared, candidate.built.choice);
  if (!built.ok()) return is_out(candidate, "nothing is left of it: " + built.status().message().what);
  candidate.built = std::move(*built);
  d.make_calls(candidate);
  candidate.report.max_error = candidate.report.eager_error = 0;  // those of the plan that was wrong
  return true;
}

// What is wrong again after so many repairs stays eager in every plan; the rest of this one was right.
static bool leave_out(Deciding& d, Candidate& candidate, const std::vector<RegionVerdict>& verdicts) {
  size_t num_ops = 0;
  for (const RegionVerdict& verdict : verdicts) {
    const Graph& region = candidate.built.regions[verdict.region].cut.graph;
    candidate.built.choice.device->judged_wrong(left_out_hash(region, d.session),
                                                verdict.wrong.empty() ? kShowsNothing : "answered wrong: " + verdict.wrong);
    num_ops += region.ops.size();
  }
  d.report.reasons.push_back(candidate.built.name + ": " + std::to_string(verdicts.size()) + " regions of " + std::to_string(num_ops) +
                             " operators were wrong again after " + std::to_string(kMostRounds) + " repairs; they stay eager");
  return build_again(d, candidate);
}

// What another plan's repair found may be all that is wrong in this one.
static bool knows_more(const Candidate& candidate) {
  return candidate.built.choice.device->known_wrong().size() != candidate.built.num_known_wrong;
}

bool keep_precise(Deciding& d, Candidate& candidate) {
  return (knows_more(candidate) || keep_all_precise(d, candidate, d.prepared->graph)) && build_again(d, candidate);
}

bool repair(Deciding& d, Candidate& candidate, const Tensors& inputs, const RepairOptions& options) {
  const double end = now_s() + kMostSeconds;
  const std::string name = candidate.built.name;
  PluginDevice& device = *candidate.built.choice.device;
  bool changed = knows_more(candidate);
  size_t num_halved = 0;
  if (changed && !build_again(d, candidate)) return false;
  for (int round = 0;; ++round) {
    Result<std::vector<RegionVerdict>> verdicts = try_regions(d, candidate.built, inputs, options.all_outputs);
    // Where the whole shows nothing, what cannot be tried is not shown at all.
    if (!verdicts.ok() && !changed && !options.decisive) return false;
    if (!verdicts.ok()) return is_out(candidate, "its regions cannot be tried: " + verdicts.status().message().what);
    const auto shows_nothing = [&](const RegionVerdict& verdict) { return options.decisive && !verdict.decisive; };
    const auto is_right = [&](const RegionVerdict& verdict) { return verdict.wrong.empty() && !shows_nothing(verdict); };
    std::erase_if(*verdicts, is_right);
    if (verdicts->empty()) {
      // Each region is as near to fp64 as eager is in it, and the whole is not: eager rounds in the order of memory that plans have, and in
      // the model's own it does not (patches of an image).
      if (!changed && options.all_outputs && keep_all_precise(d, candidate, d.prepared->graph)) return build_again(d, candidate);
      if (num_halved > 0)
        d.report.reasons.push_back(name + ": " + std::to_string(num_halved) +
                                   " regions were halved, because eager itself is far from fp64 in them");
      return changed;
    }
    if (round == kMostRounds) return leave_out(d, candidate, *verdicts);
    for (const RegionVerdict& verdict : *verdicts) {
      const BuiltRegion& region = candidate.built.regions[verdict.region];
      if (shows_nothing(verdict)) {
        auto parts = Search(d, candidate.built, region, verdict.inputs, end).too_large();
        if (!parts.ok()) return is_out(candidate, "its regions cannot be tried: " + parts.status().message().what);
        for (const Hash& part : *parts) device.judged_wrong(part, kShowsNothing);
        num_halved += parts->size();
        continue;
      }
      // Norms over few places make much of each rounding before them: one by one would take as many rounds.
      if (round >= kRoundsByOperator && keep_all_precise(d, candidate, region.cut.graph)) continue;
      Search search(d, candidate.built, region, verdict.inputs, end);
      auto culprits = search.run(verdict.wrong);
      const std::string& step = candidate.built.plan->steps()[region.step].name;
      if (culprits.ok() ? culprits->empty() : culprits.status().code() == Code::k_timeout) {
        for (const Hash& part : search.cut()) device.judged_wrong(part, "answered wrong: " + verdict.wrong);
        d.report.reasons.push_back(name + ": " + step + " is wrong: " + verdict.wrong +
                                   "; finding its wrong operators took too long, so it is cut in parts");
        continue;
      }
      if (!culprits.ok()) return is_out(candidate, step + " is wrong: " + verdict.wrong);
      for (const auto& culprit : *culprits) {
        device.judged_wrong(culprit.hash, "answered wrong: " + (culprit.what.empty() ? "a part of it" : culprit.what));
        if (culprit.what.empty()) continue;
        d.report.reasons.push_back(name + ": " + candidate.built.plugin + " is wrong for " + culprit.what +
                                   (culprit.rounds ? "; its operands are not rounded any more" : "; it is left out of the plan") +
                                   " (`keirin cache forgive` lets it try again)");
      }
    }
    if (!build_again(d, candidate)) return false;
    changed = true;
  }
}

}  // namespace keirin
