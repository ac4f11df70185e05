// SPDX-License-Identifier: Apache-2.0
#include "core/api/decide.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "abi/planted.h"
#include "core/api/contest.h"
#include "core/api/enter.h"
#include "core/api/kept_decision.h"
#include "core/api/limits.h"
#include "core/api/region_trial.h"
#include "core/api/verification.h"
#include "core/host/guard/quarantine.h"

namespace keirin {
namespace {

using Tensors = Deciding::Tensors;

constexpr int kMostWinners = 3;  // that turn out to be wrong in a region; then eager answers

// The reason code of a plan that could not be built.
const char* reason_of(const Status& status) {
  if (status.message().what.rfind("quarantined", 0) == 0) return "quarantined";
  if (status.code() == Code::k_timeout) return "deadline";
  return status.code() == Code::k_unsupported ? "unsupported" : "compile_failed";
}

}  // namespace

// Nor may the race then prefer a plan with eager steps to one without.
bool is_forbidden(const Deciding& d, const BuiltPlan& built) {
  return d.session.options.fallback == Fallback::kForbid && built.nodes_compiled < static_cast<int>(d.prepared->graph.ops.size());
}

namespace {

void add_plan(Deciding& d, Result<BuiltPlan> built, const std::string& name) {
  if (built.ok() && is_forbidden(d, *built)) {
    std::string why = std::to_string(d.report.nodes - built->nodes_compiled) + " operators would run eagerly, which is forbidden";
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
    if (built->from_cache && d.ledger)
      for (const LedgerCandidate& known : d.ledger->candidates)
        if (known.name == built->name) candidate.report.compile_seconds = known.compile_seconds;
    candidate.report.reason = "pending";
    candidate.report.peak_bytes = built->plan->arena_bytes() + built->constant_bytes;
    // Said whatever is chosen: nothing else tells that the machine's or the plugin's fault made this candidate slower.
    for (const std::string& region : built->lost) d.report.reasons.push_back(built->name + " without " + region);
    d.report.kernels_generated += static_cast<int>(built->kernels_generated);
    candidate.built = std::move(*built);
    d.make_calls(candidate);
  }
  d.candidates.push_back(std::move(candidate));
}

}  // namespace

void add_replay(Deciding& d) {
  const double start = now_s();
  Candidate candidate;
  candidate.report.name = "replay";
  auto replay = EagerGraph::make(d.prepared->graph, d.prepared->captured.calls, d.prepared->constants, {d.session.device, std::nullopt});
  if (!replay.ok()) {
    candidate.report.reason = "unsupported";
    candidate.report.note = replay.status().message().what;
  } else {
    std::shared_ptr<EagerGraph> shared = std::move(*replay);
    candidate.report.reason = "pending";
    candidate.report.compile_seconds = now_s() - start;
    candidate.own = [shared](const Tensors& inputs) { return shared->run(inputs); };
    candidate.call = d.in_eagers_forms(candidate.own, true);
  }
  d.candidates.push_back(std::move(candidate));
}

namespace {

// Whether eager, its recording or the replay was asked for by name: then no plan is built, judged and dropped.
bool wants_no_plan(const Session::Impl& session) {
  const std::string& name = session.options.only_candidate;
  return name.rfind("eager", 0) == 0 || name.rfind("replay", 0) == 0;
}

void build_candidates(Deciding& d) {
  add_replay(d);
  if (wants_no_plan(d.session)) return;
  d.progress("compile", 0.2);
  build_plans(d.session, *d.prepared, [&d](Result<BuiltPlan> built, const std::string& name) { add_plan(d, std::move(built), name); });
}

// Eager's first call.
Status look_at_eager(Deciding& d) {
  // Eager first: its error is the caller's answer, and nothing else is tried. What it does with memory decides what is captured.
  // Where inputs share memory with each other, that is not a call that others are like: it is asked with copies.
  Tensors apart = d.inputs;
  if (d.inputs_share())
    for (TensorRef& input : apart) {
      KRN_TRY_LET(input, d.services.clone(input));
    }
  // Which of its products were rounded is known of calls like these, or of other sizes of the range.
  const std::optional<KnownRun> kept = read_known_run(d);
  const bool of_range = d.range && !d.session.patterns.empty();
  if (kept || of_range) d.seen.whole_products = (kept ? kept->seen : d.session.patterns.back()->seen).whole_products;
  KRN_TRY_LET(const Tensors first, d.session.eager->observe(apart, d.seen, !kept && !of_range));
  d.eager_process_bytes = resident_bytes(d.session);
  d.forms = forms_of(first, apart, d.session.weights);
  return {};
}

}  // namespace

Status prepare(Deciding& d, std::optional<KnownRun> known) {
  if (known) {
    d.eager_process_bytes = resident_bytes(d.session);
    d.seen = std::move(known->seen);
    d.forms = std::move(known->forms);
  } else {
    KRN_TRY(look_at_eager(d));
  }
  Result<Prepared> captured = capture(d.session, d.specs, &d.seen);
  KRN_TRY(d.trials.save(d.inputs, captured.ok() ? &captured->captured.graph : nullptr));
  if (captured.ok()) d.prepared = std::make_shared<Prepared>(std::move(*captured));
  Status status = captured.status();
  if (captured.ok()) status = optimise(d.session, *d.prepared, d.forms.specs, d.session.folded);
  if (!status.ok()) {
    d.prepared.reset();
    d.report.reasons.push_back("the model runs as a whole in eager: " + status.message().what);
    return {};
  }
  d.report.stage_seconds = d.prepared->stage_seconds;
  if (d.range) return {};
  d.report.nodes = static_cast<int>(d.prepared->graph.ops.size());
  for (const Op& op : d.prepared->graph.ops) d.report.nodes_opaque += op.code == OpCode::kOpaque;
  read_kept_decision(d);
  return {};
}

namespace {

void choose(Deciding& d, size_t winner) {
  Candidate& chosen = d.candidates[winner];
  d.report.chosen = chosen.report.name;
  d.report.chosen_ms = chosen.report.milliseconds;
  d.report.max_error = chosen.report.max_error;
  d.report.eager_error = d.candidates[0].report.eager_error;
  d.report.verified = winner == 0 || chosen.report.verified || chosen.baseline;
  if (winner > 0 && chosen.report.gain > 0 && !chosen.baseline && d.report.disturbed.empty()) {
    d.report.speedup = chosen.report.gain, d.report.speedup_low = chosen.report.gain_low, d.report.speedup_high = chosen.report.gain_high;
  }
  if (winner == 0) return d.publish({}, {});
  const bool in_place = chosen.is_recording && d.session.memory_in_place;
  const CallFn call = in_place ? d.in_eagers_forms(launches_in_place(d, chosen.own), d.strides_may_differ(chosen)) : chosen.call;
  d.publish(call, service_guard(d, chosen.report.name, chosen.report.plugin), chosen.is_recording ? nullptr : chosen.built.plan);
}

// Of the steps' time; of their operators where none was timed.
double eager_share(const Deciding& d) {
  double eager = 0, all = 0;
  for (const StepReport& step : d.report.steps) {
    const double share = d.report.disturbed.empty() ? step.microseconds : step.ops;
    all += share;
    if (step.choice == "eager") eager += share;
  }
  return all > 0 ? eager / all : 0;
}

void finish(Deciding& d) {
  const Candidate* best = nullptr;  // the chosen plan; else the fastest one; else, where none was timed, the first
  const auto rank = [&](const Candidate& c) { return c.report.name == d.report.chosen ? 2 : c.report.milliseconds > 0 ? 1 : 0; };
  for (const Candidate& candidate : d.candidates) {
    if (!candidate.is_plan() || !candidate.call || !candidate.report.verified) continue;
    const bool faster = best && candidate.report.milliseconds < best->report.milliseconds;
    if (!best || rank(candidate) > rank(*best) || (rank(candidate) == 1 && rank(*best) == 1 && faster)) best = &candidate;
  }
  d.report.eager_ms = d.candidates[0].report.milliseconds;
  d.report.eager_peak_bytes = d.candidates[0].report.peak_bytes;
  d.report.peak_bytes = d.report.eager_peak_bytes;
  for (const Candidate& candidate : d.candidates) {
    if (candidate.report.name == "replay" && d.report.eager_replay_ms == 0) d.report.eager_replay_ms = candidate.report.milliseconds;
    if (candidate.report.name == d.report.chosen) d.report.peak_bytes = candidate.report.peak_bytes;
  }
  double build_seconds = 0;
  for (const auto& [name, seconds] : d.report.stage_seconds)
    if (name == "capture" || name == "passes") build_seconds += seconds;
  if (best) {
    d.report.plugin = best->report.plugin;
    d.report.compiled_ms = best->report.milliseconds;
    // A later cut finds its kernels generated already: what it would have cost alone includes the first one's.
    double generated = 0;
    for (const Candidate& candidate : d.candidates)
      if (candidate.report.plugin == best->report.plugin) generated = std::max(generated, candidate.report.compile_seconds);
    d.report.compile_seconds = build_seconds + std::max(generated, best->report.compile_seconds);
    d.report.nodes_compiled = best->built.nodes_compiled;
    const double saved = d.report.disturbed.empty() && !d.count ? (d.report.eager_ms - d.report.chosen_ms) / 1e3 : 0;
    if (d.report.chosen == best->report.name && saved > 0)
      d.report.pays_back_after_calls = static_cast<int64_t>(std::ceil(d.report.compile_seconds / saved));
    if (d.report.chosen != best->report.name)
      d.report.reasons.push_back(best->report.name + " " + best->report.reason +
                                 (best->report.note.empty() ? "" : ": " + best->report.note));
    for (const std::string& refusal : best->built.refusals) d.report.reasons.push_back("eager: " + refusal);
    time_steps(d, *best);
  }
  d.report.eager_share = best && best->report.name == d.report.chosen ? eager_share(d) : 1;
  for (const Candidate& candidate : d.candidates) {
    if (!best && (candidate.report.reason == "unsupported" || candidate.report.reason == "compile_failed"))
      d.report.reasons.push_back(candidate.report.name + ": " + candidate.report.note);
    // What kept all of them from being verified was said once.
    const bool unverified = candidate.report.reason == "not_verified" &&
                            std::ranges::count(d.report.reasons, "not verified: " + candidate.report.note) == 0;
    if (candidate.report.reason == "wrong_result" || unverified)
      d.report.reasons.push_back(candidate.report.name + " " + candidate.report.reason + ": " + candidate.report.note);
    d.report.candidates.push_back(candidate.report);
    d.report.candidates.back().repaired = candidate.built.repaired;
  }
  if (d.session.options.limits && d.prepared && d.report.disturbed.empty() && !d.count)
    add_limits(d.session, *d.prepared, best ? &best->built : nullptr, d.report);
}

// For a plan whose answers show nothing, because roundings alone move them as far: each region has to be right by itself, on what
// eager computes there, and small enough for eager to be near fp64 in it.
Status prove_by_regions(Deciding& d, size_t number) {
  Candidate& candidate = d.candidates[number];
  if (!candidate.call || !candidate.report.verified) return {};
  const bool another = d.step([&] { return repair(d, candidate, d.inputs, {.decisive = true}); });
  if (!another) return {};
  return verify(d, {number});
}

Status prove_sensitive(Deciding& d, const std::vector<size_t>& numbers) {
  for (size_t i : numbers)
    if (d.candidates[i].is_plan() && (d.sensitive || d.candidates[i].by_regions)) KRN_TRY(prove_by_regions(d, i));
  return {};
}

// What would answer these sizes if they had not been checked is not what is built for them: on a GPU other kernels of products,
// convolutions and attention. It is judged like that, so that a check proves what its range does.
void add_plans_of_other_sizes(Deciding& d) {
  if (d.session.patterns.empty() || !d.session.options.verify) return;
  for (size_t i = 0, n = d.candidates.size(); i < n; ++i) {
    const Candidate& candidate = d.candidates[i];
    if (!candidate.is_plan() || !candidate.call) continue;
    if (std::optional<Candidate> made = made_of_other_sizes(d, candidate.built.name)) d.candidates.push_back(std::move(*made));
  }
}

// Out of the list again, for it is not one to choose. Where one was wrong, no size gets another of its choice.
void take_out_plans_of_other_sizes(Deciding& d) {
  for (const Candidate& other : d.candidates) {
    if (!other.of_other_sizes || other.report.reason != "wrong_result") continue;
    const std::string how = other.report.name + ", made of what there is for other sizes, is wrong: " + other.report.note;
    d.report.reasons.push_back(how);
    for (Candidate& candidate : d.candidates)
      if (candidate.report.name == other.report.name) candidate.report.wrong_of_others = how;
  }
  std::erase_if(d.candidates, [](const Candidate& c) { return c.of_other_sizes; });
}

// A plan that is wrong as a whole loses what is wrong in it, and is judged again.
Status verify_and_repair(Deciding& d) {
  add_plans_of_other_sizes(d);
  Status verified = verify(d);
  take_out_plans_of_other_sizes(d);
  KRN_TRY(std::move(verified));
  for (size_t i = 0; i < d.candidates.size(); ++i) {
    Candidate& candidate = d.candidates[i];
    if ((candidate.wrong_set < 0 && !candidate.wrong_behind) || !candidate.is_plan()) continue;
    const bool repaired = d.step([&] {
      if (candidate.wrong_behind) return keep_precise(d, candidate);
      const Result<Tensors> inputs = d.input_set(candidate.wrong_set);
      return inputs.ok() && repair(d, candidate, *inputs, {.all_outputs = true});
    });
    if (!repaired) continue;
    candidate.wrong_set = -1;
    candidate.wrong_behind = false;
    candidate.report.verified = true;
    candidate.report.reason = "pending";
    candidate.report.note.clear();
    KRN_TRY(verify(d, {i}));
  }
  std::vector<size_t> all(d.candidates.size());
  std::iota(all.begin(), all.end(), size_t{0});
  return prove_sensitive(d, all);
}

// They are made again of what is right then.
void drop_recordings(Deciding& d) {
  std::erase_if(d.candidates, [](const Candidate& c) { return c.is_recording; });
  d.launch_replay = 0;
}

// Whether each region of what won the race is right by itself. If not, its plan is repaired and judged again, or out, and another
// race has to be run.
bool regions_are_right(Deciding& d, size_t winner) {
  if (!d.candidates[winner].is_plan() || KRN_PLANTED(winner_unjudged)) return true;
  const Result<std::vector<RegionVerdict>> verdicts = try_regions(d, d.candidates[winner].built, d.inputs, false);
  if (!verdicts.ok()) {
    d.report.reasons.push_back("the regions were not tried one by one: " + verdicts.status().message().what);
    return true;
  }
  if (std::all_of(verdicts->begin(), verdicts->end(), [](const RegionVerdict& v) { return v.wrong.empty(); })) return true;
  const std::shared_ptr<Plan> plan = d.candidates[winner].built.plan;
  drop_recordings(d);
  for (size_t i = 0; i < d.candidates.size(); ++i) {
    Candidate& candidate = d.candidates[i];
    if (candidate.built.plan != plan || !repair(d, candidate, d.inputs, {})) continue;
    const Status status = verify(d, {i});
    if (!status.ok() || !prove_sensitive(d, {i}).ok() || !candidate.report.verified) candidate.call = nullptr;
  }
  return false;
}

// One after the other the winner's regions are put back to eager, for good where the plan is faster without, beyond noise. What comes of
// it is a candidate then. False: the winner is as fast as it can be had that way.
Result<bool> leave_one_out(Deciding& d, size_t winner) {
  Candidate held = d.candidates[winner];
  if (!held.is_plan() || held.built.regions.size() < 2) return false;
  const size_t known = d.candidates.size();
  size_t tried = 0;
  std::vector<TensorRef> others;  // of recordings
  for (const BuiltRegion& region : std::vector<BuiltRegion>(held.built.regions)) {
    PlanChoice choice = held.built.choice;
    choice.left_out.insert(std::upper_bound(choice.left_out.begin(), choice.left_out.end(), region.number), region.number);
    Result<BuiltPlan> built = build_plan(d.session, *d.prepared, choice);
    if (!built.ok() || built->regions.empty()) continue;
    const std::string name = built->name;
    add_plan(d, std::move(built), name);
    const size_t at = d.candidates.size() - 1;
    Candidate variant = d.candidates[at];
    if (variant.call && held.is_recording) {
      Result<CallFn> recorded = record_launches(d, variant, others);
      variant.call = recorded.ok() ? *recorded : nullptr;
    }
    bool stays = false;
    if (variant.call) {
      ++tried;
      KRN_TRY_LET(stays, is_faster(d, variant, held));
    }
    if (stays) {
      d.candidates[at].report.verified = true;  // unless the judge finds otherwise
      if (d.session.options.verify) stays = verify(d, {at}).ok() && prove_sensitive(d, {at}).ok() && d.candidates[at].report.verified;
    }
    if (!stays) {
      d.candidates.pop_back();
      continue;
    }
    d.candidates.erase(d.candidates.begin() + static_cast<int64_t>(known), d.candidates.begin() + static_cast<int64_t>(at));
    variant.is_recording = held.is_recording;
    held = std::move(variant);
    KRN_TRY(d.go_on());
  }
  d.report.reasons.push_back("leave-one-out: " + std::to_string(tried) + " regions of the plan were put back to eager, one at a time; " +
                             "it is faster without " + std::to_string(held.built.choice.left_out.size()) + " of them");
  if (d.candidates.size() == known) return false;
  drop_recordings(d);
  return true;
}

// A race tells about a graph and not about the values of its weights: what won it with others is only judged, and answers if it is right
// with these. False where all has to be decided.
Result<bool> judge_what_won_with_others(Deciding& d) {
  if (!d.raced_with_others || d.session.options.measure_again || d.count) return false;
  const std::vector<LedgerCandidate>& raced = d.raced_with_others->candidates;
  const std::string& choice = d.raced_with_others->choice;
  if (choice == "eager") {  // perhaps because a plan was wrong with the others
    const bool fairly = std::ranges::none_of(raced, [](const LedgerCandidate& c) {
      return c.repaired || (!c.verified && c.reason != "baseline" && c.reason != "unsupported");
    });
    if (fairly) keep_judged(d, d.candidates[0]);
    return fairly;
  }
  const auto known = std::ranges::find(raced, choice, &LedgerCandidate::name);
  const std::optional<PlanChoice> how = find_choice(d.session, choice);
  if (!how || known == raced.end() || known->repaired) return false;
  const auto give_up = [&] {
    d.candidates.resize(1);
    return false;
  };
  double start = now_s();
  d.step([&] { add_plan(d, build_plan(d.session, *d.prepared, *how), choice); });
  KRN_TRY(d.go_on());
  d.stage("compile", now_s() - start);
  if (!d.candidates[1].call || d.candidates[1].built.hashes() != known->regions) return give_up();
  start = now_s();
  Status status = verify(d);
  if (status.ok()) status = prove_sensitive(d, {1});
  KRN_TRY(d.go_on());
  const bool right = status.ok() && d.candidates[1].report.verified && !d.candidates[1].built.repaired;
  d.stage("verify", now_s() - start);
  if (!right || !d.step([&] { return regions_are_right(d, 1); })) return give_up();
  d.step([&] { keep_judged(d, d.candidates[1]); });
  return true;
}

// With `compile` never, where no earlier process decided.
ModelReport eager_answers(Deciding& d) {
  d.report.chosen = "eager";
  d.report.verified = true;
  d.report.eager_share = 1;
  d.report.reasons.insert(d.report.reasons.begin(),
                          "no earlier process decided about such calls, and compile is never: eager answers them");
  d.publish({}, {});
  return d.report;
}

}  // namespace

const char* why_only_eager(const Deciding& d) {
  if (d.seen.reads_storage) return "the model reads an input or weight by its place in memory (as_strided)";
  if (!d.call_guard().admits(d.inputs)) return "the model writes an input that shares memory with another one or with a weight";
  return nullptr;
}

namespace {

// Where a worker was killed or memory ran out meanwhile, the decision holds for now only: it is not kept, and made again later.
void note_rests(Deciding& d, uint64_t before) {
  if (d.session.runtime.quarantine().times_rested() == before) return;
  d.keeps_decision = false;
  d.holds_for_now = true;
  if (!d.report.disturbed.empty()) return;
  d.report.disturbed = "a worker was killed, or memory or disk ran out, so that regions were left to eager";
  d.report.reasons.push_back(d.report.disturbed);
}

Result<ModelReport> run(Deciding& d) {
  const uint64_t rested = d.session.runtime.quarantine().times_rested();
  Candidate eager;
  eager.report.name = "eager";
  eager.report.verified = true;
  eager.baseline = true;
  eager.call = eager.own = [&s = d.session](const Tensors& inputs) { return s.eager->run(inputs); };
  d.candidates.push_back(std::move(eager));
  // Where eager has answered such a call already, and what it showed is kept with a decision: taking that over is over in a moment.
  std::optional<KnownRun> known = d.session.options.compile == When::kNow ? std::nullopt : read_known_run(d);
  const bool in_background = std::exchange(d.gives_way, d.gives_way && !known);
  KRN_TRY(d.step([&] { return prepare(d, std::move(known)); }));
  KRN_TRY(d.go_on());
  if (std::string why = why_no_plugin(d.session); !why.empty()) d.report.reasons.insert(d.report.reasons.begin(), std::move(why));
  if (const char* const only_eager = why_only_eager(d)) {
    d.report.chosen = "eager";
    d.report.verified = true;
    d.report.eager_share = 1;
    d.report.reasons.push_back(std::string(only_eager) + ": eager answers such calls");
    return d.report;
  }
  if (d.prepared) {
    if (d.step([&] { return start_from_kept_decision(d); })) return d.report;
    d.gives_way = in_background;
    if (d.session.never_compiles()) return eager_answers(d);
    KRN_TRY_LET(const bool judged, judge_what_won_with_others(d));
    if (judged) return d.report;
    double start = now_s();
    d.step([&] { build_candidates(d); });
    KRN_TRY(d.go_on());
    d.stage("compile", now_s() - start);
    start = now_s();
    if (d.session.options.verify) {
      // A model that cannot be refereed is not compiled: that is a reason and not an error.
      if (Status status = verify_and_repair(d); !status.ok()) {
        d.report.reasons.push_back("not verified: " + status.message().what);
        for (Candidate& candidate : d.candidates) {
          candidate.report.verified = candidate.baseline;
          if (!candidate.baseline && candidate.call)
            candidate.report.reason = "not_verified", candidate.report.note = status.message().what;
        }
      }
    } else {
      d.report.reasons.push_back("verification was switched off");
      for (Candidate& candidate : d.candidates) candidate.report.verified = static_cast<bool>(candidate.call);
    }
    d.stage("verify", now_s() - start);
  }
  d.gives_way = in_background;
  if (d.session.never_compiles()) return eager_answers(d);
  KRN_TRY(d.go_on());
  size_t winner = 0;
  bool left_out = false;
  for (int wrong_winners = 0; wrong_winners < kMostWinners;) {
    d.step([&] {
      add_launch_replays(d);
      measure_memory(d);
    });
    double start = now_s();
    KRN_TRY_LET(const size_t fastest, d.step([&] { return race_candidates(d); }));
    d.stage("race", now_s() - start);
    KRN_TRY(d.go_on());
    start = now_s();
    const bool stands = !d.session.options.verify || d.step([&] { return regions_are_right(d, fastest); });
    d.stage("regions", now_s() - start);
    KRN_TRY(d.go_on());
    if (!stands) {
      ++wrong_winners;
      continue;
    }
    if (d.session.options.leave_one_out && !std::exchange(left_out, true)) {
      start = now_s();
      KRN_TRY_LET(const bool more, d.step([&] { return leave_one_out(d, fastest); }));
      d.stage("leave_one_out", now_s() - start);
      KRN_TRY(d.go_on());
      if (more) continue;
    }
    winner = fastest;
    break;
  }
  d.step([&] {
    choose(d, winner);
    finish(d);
    note_rests(d, rested);
    keep_decision(d);
    remember_pattern(d, d.candidates[winner]);
  });
  if (!std::exchange(d.session.wrote_other_sizes, true) && d.prepared) {
    const double start = now_s();
    d.report.kernels_generated += d.step([&] { return compile_other_structures(d.session, d.specs); });
    d.stage("other_sizes", now_s() - start);
  }
  if (Cache* cache = d.session.runtime.cache())
    d.step([&] { cache->sweep(); });  // here and not where entries are written: a decision writes many
  return d.report;
}

}  // namespace

Status keep_fallback_rule(const Session::Impl& session, ModelReport& report) {
  const bool falls_back = report.nodes_compiled < report.nodes || report.nodes == 0;
  if (!falls_back || session.options.fallback == Fallback::kAllow) return {};
  const std::string why = report.reasons.empty() ? std::string() : report.reasons.front();
  const int eager = report.nodes - report.nodes_compiled;
  const std::string which = report.nodes == 0 ? "all" : std::to_string(eager) + " of " + std::to_string(report.nodes);
  const std::string share = std::to_string(std::lround(report.eager_share * 100));
  const std::string what = which + " operators run eagerly, " + share + " % of a call's time";
  if (session.options.fallback == Fallback::kForbid)
    return Status(Code::k_unsupported, {"fallback is forbidden and " + what, session.name, "calls are answered as before", why});
  report.reasons.insert(report.reasons.begin(), "warning: " + what + (why.empty() ? "" : ": " + why));
  return {};
}

Result<ModelReport> decide(Session::Impl& session, const std::vector<TensorRef>& inputs, bool for_range) {
  if (std::find(inputs.begin(), inputs.end(), nullptr) != inputs.end()) return session.eager->run(inputs).status();  // says which
  Deciding d(session, inputs);
  d.for_range = for_range;
  Result<ModelReport> report = run(d);
  if (!report.ok()) {
    KRN_TRY(d.trials.restore());  // as the call finds it that eager answers now
    return report;
  }
  KRN_TRY(keep_fallback_rule(session, *report));
  for (std::string& incident : session.runtime.plugins().take_incidents()) report->reasons.push_back(std::move(incident));
  return report;
}

Result<ModelReport> take_over(Session::Impl& session, const std::vector<TensorRef>& inputs) {
  Deciding d(session, inputs);
  std::optional<KnownRun> known = read_known_run(d);
  if (!known) return Status(Code::k_unsupported, "nothing was decided for such calls");
  KRN_TRY(prepare(d, std::move(known)));
  if (!d.prepared || !d.ledger) return Status(Code::k_unsupported, "no decision was found for the graph of such calls");
  if (!start_from_kept_decision(d))
    return Status(Code::k_unsupported, d.ledger->choice + ", which was chosen, cannot be made of what there is");
  KRN_TRY(keep_fallback_rule(session, d.report));
  return d.report;
}

}  // namespace keirin
