// SPDX-License-Identifier: Apache-2.0
#include "core/api/region_trial.h"

#include <algorithm>

#include "core/api/region_judge.h"
#include "core/api/region_search.h"
#include "core/eager/rows/graph_calls.h"

namespace keirin {
namespace {

using Tensors = Deciding::Tensors;

constexpr int kMostRounds = 6;        // of building again: each finds what the one before hid
constexpr int kRoundsByOperator = 2;  // in which only what is found wrong is kept from rounding; then all of a wrong region
constexpr double kMostSeconds = 30;   // of looking for what is wrong in one plan; from then on what is wrong is cut unlooked at
constexpr const char* kShowsNothing = "eager itself is far from fp64 in it: not to be judged";

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
        auto parts = find_too_large(d, candidate.built, region, verdict.inputs, end);
        if (!parts.ok()) return is_out(candidate, "its regions cannot be tried: " + parts.status().message().what);
        for (const Hash& part : *parts) device.judged_wrong(part, kShowsNothing);
        num_halved += parts->size();
        continue;
      }
      // Norms over few places make much of each rounding before them: one by one would take as many rounds.
      if (round >= kRoundsByOperator && keep_all_precise(d, candidate, region.cut.graph)) continue;
      auto culprits = find_wrong(d, candidate.built, region, verdict.inputs, verdict.wrong, end);
      const std::string& step = candidate.built.plan->steps()[region.step].name;
      if (!culprits.ok()) return is_out(candidate, step + " is wrong: " + verdict.wrong);
      if (!culprits->complete || culprits->found.empty()) {
        const std::vector<Hash> parts = parts_of(d, candidate.built, region, verdict.inputs);
        for (const Hash& part : parts) device.judged_wrong(part, "answered wrong: " + verdict.wrong);
        d.report.reasons.push_back(name + ": " + step + " is wrong: " + verdict.wrong +
                                   "; finding its wrong operators took too long, so it is cut in parts");
      }
      for (const Culprit& culprit : culprits->found) {
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
