// SPDX-License-Identifier: Apache-2.0
#include "core/api/kept_decision.h"

#include <algorithm>

#include "abi/planted.h"
#include "core/api/contest.h"
#include "core/api/decision_key.h"
#include "core/api/limits.h"
#include "core/api/verification.h"
#include "core/eager/program/library_settings.h"
#include "core/eager/rows/graph_calls.h"
#include "core/eager/rows/launch_replay.h"
#include "core/host/call/device.h"
#include "core/ir/bytes.h"

namespace keirin {
namespace {

using Tensors = Deciding::Tensors;

std::map<std::string, std::string> fingerprints(const Session::Impl& session) {
  std::map<std::string, std::string> out = {{"torch", KEIRIN_TORCH_VERSION}};
  for (PluginDevice* device : session.runtime.plugins().devices())
    if (device->torch_device() == session.device)
      out["plugin " + device->plugin_name()] =
          device->plugin_build_id() + " " + device->arch() + " " + device->fingerprint() + " " + device->name();
  return out;
}

CacheKey key_of(const Session::Impl& session, const Hash& graph) {
  Options options = session.options;
  options.device = device_name(session.device);  // "cuda" is cuda:0
  options.threads = session.runtime.tensors().num_threads();
  return decision_key(graph, options, library_settings(session.device));
}

void note_kept(const Deciding& d, bool for_a_while = false) {
  Cache& cache = *d.session.runtime.cache();
  const auto key = known_run_key(d.session, d.inputs);
  if (!key || cache.read(EntryKind::kKnown, *key)) return;
  if (for_a_while) cache.hold(EntryKind::kKnown, *key, known_run_text({d.seen, d.forms}));
  else cache.publish(EntryKind::kKnown, *key, known_run_text({d.seen, d.forms}));
}

// What this process decided while others had the machine is taken by whoever decides beside calls for the first time: its race would be
// disturbed as that one was. Who tries again, or has somebody wait, races.
bool takes_disturbed(const Session::Impl& session) {
  return session.options.compile == When::kBackground && (session.gives_way || session.takes_over) && !session.decides_anew;
}

}  // namespace

Cache* usable_cache(const Session::Impl& session) {
  Cache* cache = session.runtime.cache();
  const Options& options = session.options;
  return cache && cache->readable() && options.verify && options.force.empty() && options.only_candidate.empty() ? cache : nullptr;
}

std::optional<CacheKey> key_by_program(const Session::Impl& session, const std::string& what, bool any_weights) {
  const std::string& digest = session.model->program.digest;
  if (digest.empty()) return std::nullopt;
  const std::string text = "program " + digest + "\n" + what;
  CacheKey key = key_of(session, sha256(text.data(), text.size()));
  for (const auto& [name, value] : fingerprints(session)) key.add("fingerprint " + name, value);
  if (!any_weights) key.add("fingerprint file", session.file_stamp);
  return key;
}

std::optional<CacheKey> known_run_key(const Session::Impl& session, const std::vector<TensorRef>& inputs) {
  std::string text;
  for (const TensorRef& input : inputs) {
    const TensorSpec spec = spec_of(*input);
    text += spec_text(spec);
    for (const int64_t stride : spec.strides) text += " " + std::to_string(stride);
    text += "\n";
  }
  return key_by_program(session, text);
}

std::optional<KnownRun> read_known_run(const Deciding& d) {
  Cache* cache = usable_cache(d.session);
  const auto key = known_run_key(d.session, d.inputs);
  if (!cache || !key || d.session.options.measure_again || d.inputs_share()) return std::nullopt;
  const std::optional<std::string> text = cache->read(EntryKind::kKnown, *key);
  if (!text) return std::nullopt;
  Result<KnownRun> run = parse_known_run(*text);
  return run.ok() ? std::optional(std::move(*run)) : std::nullopt;
}

void read_kept_decision(Deciding& d) {
  if (const auto bytes = written_graph(*d.prepared); bytes.ok()) read_kept_decision(d, (*bytes)->hash);
}

void read_kept_decision(Deciding& d, const Hash& what) {
  Cache* cache = usable_cache(d.session);
  if (!cache) return;
  d.ledger_key = key_of(d.session, what);
  std::string stale;
  d.ledger = read_ledger(*cache, *d.ledger_key, fingerprints(d.session), &stale);
  if (d.ledger && !d.ledger->disturbed.empty() && !takes_disturbed(d.session)) d.ledger.reset();
  if (d.ledger && !weights_of(*d.ledger, d.session.file_stamp)) d.raced_with_others = std::exchange(d.ledger, std::nullopt);
}

namespace {

// Fills the report as the ledger says, and publishes what it chose. `chosen`: the plan's own call; empty: eager's.
void answer_as_kept(Deciding& d, const BuiltPlan& built, CallFn chosen, bool recorded, const std::string& how) {
  const LedgerWeights& judged = *weights_of(*d.ledger, d.session.file_stamp);
  d.report.disturbed = d.ledger->disturbed;
  d.report.chosen = d.ledger->choice;
  d.report.plugin = built.plugin;
  d.report.nodes_compiled = built.nodes_compiled;
  if (built.plan) {
    d.report.steps_of = d.ledger->choice;
    const std::vector<double>& us = d.ledger->step_us;
    const std::vector<PlanStep>& steps = built.plan->steps();
    for (size_t s = 0; s < steps.size(); ++s)
      d.report.steps.push_back(step_report(steps[s], built.plugin, us.size() == steps.size() ? us[s] : 0));
  }
  if (d.session.options.limits && !d.count) add_limits(d.session, *d.prepared, &built, d.report);
  d.report.kernels_generated = static_cast<int>(built.kernels_generated);
  d.report.pays_back_after_calls = d.ledger->pays_back_after_calls;
  d.report.eager_share = d.ledger->eager_share;
  for (const LedgerCandidate& known : d.ledger->candidates) {
    if (known.name == "eager")
      d.report.eager_ms = known.milliseconds, d.report.eager_peak_bytes = known.peak_bytes, d.report.eager_error = judged.eager_error;
    if (known.name == d.ledger->choice) {
      d.report.chosen_ms = known.milliseconds, d.report.peak_bytes = known.peak_bytes;
      d.report.verified = known.verified, d.report.max_error = judged.max_error;
      if (known.gain > 0) d.report.speedup = known.gain, d.report.speedup_low = known.gain_low, d.report.speedup_high = known.gain_high;
      if (built.plan) d.report.compiled_ms = known.milliseconds, d.report.compile_seconds = known.compile_seconds;
    }
    d.report.candidates.push_back(report_of(known));
    CandidateReport& row = d.report.candidates.back();
    if (judged.all || row.plugin.empty() || row.name == d.ledger->choice) continue;
    row.verified = false;
    row.reason = "not_verified", row.note = "with these weights, which only what is chosen was tried with";
  }
  if (d.report.disturbed.empty()) d.report.reasons.push_back(how);
  else d.report.reasons.insert(d.report.reasons.begin(), how + ": " + d.report.disturbed);
  note_kept(d, !d.report.disturbed.empty());
  for (const std::string& refusal : built.refusals) d.report.reasons.push_back("eager: " + refusal);
  std::shared_ptr<PlanGuard> guard = chosen ? service_guard(d, d.ledger->choice, built.plugin) : nullptr;
  d.publish(d.in_eagers_forms(std::move(chosen), !built.plan || d.strides_may_differ(*built.plan)), std::move(guard),
            recorded ? nullptr : built.plan);
}

}  // namespace

bool start_from_kept_decision(Deciding& d) {
  if (!d.ledger) return false;
  const double start = now_s();
  BuiltPlan built;
  CallFn chosen;
  constexpr std::string_view kRecorded = "+launch_replay";
  const bool recorded = d.ledger->choice.ends_with(kRecorded);
  const std::string choice = d.ledger->choice.substr(0, d.ledger->choice.size() - (recorded ? kRecorded.size() : 0));
  if (const auto how = find_choice(d.session, choice)) {
    // It has to be what was measured then: a region may have been lost, or found wrong, since.
    const auto known = std::find_if(d.ledger->candidates.begin(), d.ledger->candidates.end(),
                                    [&](const LedgerCandidate& c) { return c.name == d.ledger->choice; });
    auto plan = build_plan(d.session, *d.prepared, *how);
    if (!plan.ok() || known == d.ledger->candidates.end() || plan->hashes() != known->regions) return false;
    built = std::move(*plan);
    chosen = [plan = built.plan, prepared = d.prepared](const Tensors& inputs) { return plan->run(inputs); };
  } else if (choice == "replay") {
    auto replay = EagerGraph::make(d.prepared->graph, d.prepared->captured.calls, d.prepared->constants, {d.session.device, std::nullopt});
    if (!replay.ok()) return false;
    chosen = [shared = std::shared_ptr<EagerGraph>(std::move(*replay)), prepared = d.prepared](const Tensors& inputs) {
      return shared->run(inputs);
    };
  } else if (choice != "eager") {
    return false;  // of a plugin that is not here
  }
  if (recorded) {
    if (!chosen) chosen = [&s = d.session](const Tensors& inputs) { return s.eager->run(inputs); };
  }
  if (recorded && d.session.memory_in_place) {
    chosen = launches_in_place(d, std::move(chosen));
  } else if (recorded) {
    auto replay = LaunchReplay::record(chosen, d.inputs, d.seen.written_inputs, d.services, d.session.device);
    if (!d.trials.restore().ok() || !replay.ok()) return false;
    // The recording reads the plan's arena and weights: it keeps the call alive.
    chosen = [shared = std::shared_ptr<LaunchReplay>(std::move(*replay)), keep = chosen](const Tensors& inputs) {
      return shared->run(inputs);
    };
  }
  if (!built.plan || built.from_cache) {
    d.report.warm_start_seconds = now_s() - start;
    for (const auto& [name, seconds] : d.report.stage_seconds) d.report.warm_start_seconds += seconds;
  }
  if (d.session.options.measure_again) return false;
  answer_as_kept(d, built, std::move(chosen), recorded,
                 d.ledger->disturbed.empty() ? "decided by an earlier process; bench measures again"
                                             : "decided before in this process, by a race that was disturbed");
  return true;
}

void keep_judged(Deciding& d, const Candidate& candidate) {
  d.ledger = std::move(d.raced_with_others);
  add_weights(*d.ledger, {d.session.file_stamp, candidate.report.max_error, candidate.report.eager_error, false});
  publish_ledger(*d.session.runtime.cache(), *d.ledger_key, *d.ledger);
  answer_as_kept(d, candidate.built, candidate.is_plan() ? candidate.own : CallFn(), false,
                 candidate.is_plan() ? "raced with other weights; verified with these" : "raced with other weights");
}

CandidateReport report_of(const LedgerCandidate& known) {
  const size_t plugin = known.name.find('/');  // "cpu/all": as candidates that are plans are called
  return {known.name, plugin == std::string::npos ? "" : known.name.substr(0, plugin),
          known.reason, known.note, known.verified, known.max_error, known.eager_error, known.milliseconds, known.gain,
          known.gain_low, known.gain_high, known.blocks, known.compile_seconds, known.peak_bytes, known.repaired};
}

void keep_decision(Deciding& d) {
  if (!d.ledger_key) return;
  LedgerRecord record;
  if (!d.keeps_decision && !KRN_PLANTED(disturbed_kept)) {
    if (d.holds_for_now || d.race_disturbed.empty() || d.ledger || d.session.options.compile != When::kBackground) return;
    record.disturbed = d.race_disturbed;
  }
  add_weights(record, {d.session.file_stamp, d.report.max_error, d.report.eager_error, true});
  record.choice = d.report.chosen;
  record.fingerprints = fingerprints(d.session);
  record.environment["model"] = d.session.name;
  record.pays_back_after_calls = d.report.pays_back_after_calls;
  record.eager_share = d.report.eager_share;
  if (d.report.steps_of == record.choice && d.report.disturbed.empty())
    for (const StepReport& step : d.report.steps) record.step_us.push_back(step.microseconds);
  for (const Candidate& candidate : d.candidates) {
    const CandidateReport& r = candidate.report;
    record.candidates.push_back({r.name, r.reason, r.note, r.verified, r.gain, r.gain_low, r.gain_high, r.blocks, r.milliseconds,
                                 r.max_error, r.eager_error, r.compile_seconds, r.peak_bytes, candidate.built.hashes(),
                                 candidate.built.repaired || !candidate.report.wrong_of_others.empty()});
    LedgerCandidate& kept = record.candidates.back();
    if (!record.disturbed.empty()) kept.gain = kept.gain_low = kept.gain_high = kept.milliseconds = 0, kept.blocks = 0;
  }
  publish_ledger(*d.session.runtime.cache(), *d.ledger_key, record);
  note_kept(d, !record.disturbed.empty());
}

}  // namespace keirin
