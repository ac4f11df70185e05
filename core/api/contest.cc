// SPDX-License-Identifier: Apache-2.0
#include "core/api/contest.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "abi/planted.h"
#include "core/base/background.h"
#include "core/base/end_flag.h"
#include "core/eager/rows/launch_replay.h"
#include "core/eager/rows/replay_in_place.h"
#include "core/exec/ticks.h"
#include "core/tune/beside_others.h"
#include "core/tune/elements.h"
#include "core/tune/interference.h"
#include "core/tune/processors.h"
#include "core/tune/race.h"
#include "core/tune/verify.h"

namespace keirin {
namespace {

using Tensors = Deciding::Tensors;

constexpr double kLeastGain = 0.02;
constexpr uint64_t kConfirmNs = 4'000'000'000;  // what `bench` publishes was true for so long
constexpr uint64_t kPairNs = 3'000'000'000;     // for a plan and a variant of it, of which there may be many

bool runs_in_worker(const Deciding& d) { return d.session.options.run_in == "worker"; }

// Why a recording is not to be trusted with inputs that it was not made with; empty if it answers them as the call it was made of does.
// The candidate was verified: what is asked is that each call's inputs and outputs are bound, and the beginning of an output shows that.
// Random numbers differ by right. So may others: LibTorch's attention of one query in 16 bits on an H100 gives one of two answers to the
// same operands, from call to call. What is bound wrongly differs in every one.
Result<std::string> unlike_when_recorded(Deciding& d, const CallFn& recorded, const CallFn& plain, Tensors& inputs) {
  constexpr int64_t kMost = 1 << 16;
  constexpr int kTries = 4;
  if (inputs.empty()) {
    KRN_TRY_LET(inputs, d.input_set(1));
  }
  const size_t num_outputs = d.session.eager->num_outputs();
  const auto answer = [&](const CallFn& call) -> Result<Trial> {
    KRN_TRY_LET(Trial trial, d.trials.run(call, inputs));
    for (TensorRef& t : trial.numbers)
      if (t && t->storage_bytes() >= kMost * dtype_bytes(t->dtype()) && num_elements(*t) > kMost) {
        KRN_TRY_LET(t, d.services.wrap({t->dtype(), {kMost}, {1}, t->device()}, t->data(), t));
      }
    return trial;
  };
  KRN_TRY_LET(const Trial once, answer(plain));
  const auto difference = [&](const Trial& other) -> Result<std::string> {
    if (other.numbers.size() != once.numbers.size()) return std::string("another number of outputs");
    if (std::string way = d.trials.other_difference(once, other, num_outputs); !way.empty()) return way;
    JudgeOptions options;
    options.error_budget = 1e-2;
    options.names = d.trials.names(num_outputs);
    KRN_TRY_LET(const Judgement judgement, judge(once.numbers, once.numbers, other.numbers, d.services, options));
    return judgement.right ? std::string() : judgement.reason;
  };
  std::string reason;
  for (int i = 0; i < kTries; ++i) {
    KRN_TRY_LET(const Trial replayed, answer(recorded));
    KRN_TRY_LET(reason, difference(replayed));
    if (reason.empty()) return reason;
    KRN_TRY_LET(const Trial again, answer(plain));
    KRN_TRY_LET(const std::string of_itself, difference(again));
    if (!of_itself.empty()) return std::string();  // the call does not answer itself alike either
  }
  return "the recording answers new inputs in another way than the call that was recorded: " + reason;
}

int64_t measure_peak(Deciding& d, const Candidate& candidate) {
  auto inputs = d.trials.own_copies(d.inputs);
  if (!inputs.ok() || !d.trials.put_back_positions(*inputs).ok()) return 0;
  d.services.reset_peak(d.session.device);
  const int64_t before = d.services.peak_bytes(d.session.device);
  auto outputs = candidate.call(*inputs);
  const int64_t peak = d.services.peak_bytes(d.session.device) - before;
  return outputs.ok() ? std::max<int64_t>(peak, 0) : 0;
}

// Why the race told nothing, if it did not: a winner is one whatever happened to others, but that nobody won is known only if all raced.
std::string disturbance(const RaceSheet& sheet) {
  if (sheet.disturbed.empty() || (sheet.winner != sheet.baseline && !sheet.baseline_disturbed)) return {};
  return sheet.disturbed;
}

struct Winner {
  size_t candidate = 0;
  std::string why;  // not by this race: a line for the report
};

// The threads that share the work of this one's calls.
std::vector<int> team_of(TensorServices& services) {
  std::mutex mutex;
  std::vector<int> ids;
  services.parallel_for(services.num_threads(), 1, [&](int64_t, int64_t) {
    const std::lock_guard lock(mutex);
    const int id = static_cast<int>(::syscall(SYS_gettid));
    if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
  });
  return ids;
}

// The candidate that is clearly faster while others have the processor, as in a service they always may; eager where none is shown to be.
// Only for calls whose work is done by threads that are known, the calling one and its team: what a worker waited is not.
size_t faster_beside_others(const Deciding& d, const std::vector<Runner>& runners, const RaceOptions& options,
                            const std::vector<size_t>& of_runner) {
  const bool here = d.session.device.kind == Device::kCpu && !runs_in_worker(d);
  if (giving_way() == GiveWay::kNot || !here || d.count || !d.session.options.force.empty()) return 0;
  const Result<RaceSheet> sheet = race_beside_others(runners, options, team_of(d.services));
  return sheet.ok() && disturbance(*sheet).empty() ? of_runner[sheet->winner] : 0;
}

// Who answers from now on: the option's, where it forces one; what the race showed; where it was disturbed, what an undisturbed race
// chose before, in this process or another, if that is here and right; else what is clearly faster all the same, `beside_others`.
Winner name_winner(const Deciding& d, const RaceSheet& sheet, const std::vector<size_t>& of_runner,
                   const std::function<size_t()>& beside_others) {
  const auto usable = [&](const Candidate& c) { return c.call && c.report.verified; };
  if (d.session.options.force == "eager") return {};
  if (d.session.options.force == "compiled") {
    // The one that was raced, for its figures are known; else any.
    const auto rank = [&](const Candidate& c) { return c.report.plugin.empty() || !usable(c) ? 0 : c.report.blocks > 0 ? 2 : 1; };
    size_t best = 0;
    for (size_t i = 1; i < d.candidates.size(); ++i) {
      const Candidate &own = d.candidates[i], &held = d.candidates[best];
      const bool faster = rank(own) == rank(held) && own.report.milliseconds < held.report.milliseconds;
      if (rank(own) > rank(held) || (rank(own) > 0 && faster)) best = i;
    }
    if (best > 0) return {best, {}};
  }
  const std::string disturbed = disturbance(sheet);
  if (disturbed.empty()) return {KRN_PLANTED(winner_of_dropped) ? sheet.winner : of_runner[sheet.winner], {}};
  for (size_t i = d.candidates.size(); d.ledger && d.ledger->disturbed.empty() && i-- > 0;)
    if (d.candidates[i].report.name == d.ledger->choice && usable(d.candidates[i]))
      return {i, "the race was disturbed: " + disturbed + "; the choice is that of an earlier race"};
  const size_t clear = beside_others();
  const std::string& name = d.candidates[clear].report.name;
  return {clear, "the race was disturbed: " + disturbed + "; " + name + " answers" +
                     (clear > 0 ? ", which is faster by more than a tenth in the time that calls do not wait for a processor" : "")};
}

// What was raced, on the copies of the inputs that races have.
Runner runner_of(Deciding& d, const Candidate& candidate) {
  const auto call = [&d, call = candidate.call]() -> Status {
    KRN_TRY(d.trials.put_back_positions(d.raced));
    return call(d.raced).status();
  };
  return {candidate.report.name, call, candidate.report.peak_bytes};
}

// `process` sees what disturbs the race, and outlives the options.
RaceOptions race_options(const Deciding& d, Interference& process) {
  RaceOptions options;
  options.threshold = kLeastGain;
  options.limit_ns = static_cast<uint64_t>(d.session.options.race_seconds * 1e9);
  if (d.session.device.kind != Device::kCpu) options.wait = [&d] { return d.services.synchronize(d.session.device); };
  if (Cache* cache = d.session.runtime.cache(); cache && cache->usable())
    options.lock_path = cache->dir() + "/lock/race-" + device_name(d.session.device);
  options.between = pass_gate;
  options.cancel = end_flag();
  options.interference = d.session.options.interference ? d.session.options.interference : &process;
  for (PluginDevice* device : d.session.runtime.plugins().devices())
    if (d.session.device.kind != Device::kCpu && device->torch_device() == d.session.device && device->condition().clock_mhz > 0)
      options.condition = [device] { return device->condition(); };
  return options;
}

Result<RaceSheet> time_or_count(const Deciding& d, const std::vector<Runner>& runners, size_t replay_runner, const RaceOptions& options) {
  return d.count ? count_calls(runners, *d.count, kLeastGain) : race(runners, replay_runner, options);
}

}  // namespace

CallFn launches_in_place(Deciding& d, CallFn own) {
  auto record = ReplayInPlace::recorder(own, d.seen.written_inputs, d.services, d.session.device);
  auto replay = std::make_shared<ReplayInPlace>(std::move(own), std::move(record), d.services, d.session.device);
  return [replay = std::move(replay)](const Tensors& inputs) { return replay->run(inputs); };
}

Result<CallFn> record_launches(Deciding& d, const Candidate& candidate, std::vector<TensorRef>& others) {
  auto replay = LaunchReplay::record(candidate.own, d.inputs, d.seen.written_inputs, d.services, d.session.device);
  KRN_TRY(d.trials.restore());
  KRN_TRY(replay.status());
  // The recording reads the plan's arena and weights: it keeps the call alive.
  const CallFn call = d.in_eagers_forms([shared = std::shared_ptr<LaunchReplay>(std::move(*replay)), keep = candidate.own](
                                            const Tensors& inputs) { return shared->run(inputs); },
                                        d.strides_may_differ(candidate));
  if (d.prepared) {
    const Result<std::string> unlike = unlike_when_recorded(d, call, candidate.call, others);
    if (!unlike.ok()) return Status(Code::k_wrong_result, unlike.status().message().what);
    if (!unlike->empty()) return Status(Code::k_wrong_result, *unlike);
  }
  return d.session.memory_in_place ? d.in_eagers_forms(launches_in_place(d, candidate.own), d.strides_may_differ(candidate)) : call;
}

void add_launch_replays(Deciding& d) {
  if (d.session.device.kind == Device::kCpu) return;
  const size_t count = d.candidates.size();
  Tensors others;
  for (size_t i = 0; i < count; ++i) {
    if (!d.candidates[i].call || (i > 0 && !d.candidates[i].report.verified)) continue;
    Candidate recorded;
    recorded.report = d.candidates[i].report;
    recorded.report.name = d.candidates[i].report.name + "+launch_replay";
    recorded.built = d.candidates[i].built;
    recorded.is_recording = true;
    recorded.own = d.candidates[i].own;
    Result<CallFn> call = record_launches(d, d.candidates[i], others);
    if (call.ok()) {
      recorded.call = std::move(*call);
      recorded.report.reason = "pending";
      recorded.baseline = i == 0;
      if (i == 0) d.launch_replay = d.candidates.size();
    } else {
      recorded.report.reason = call.status().code() == Code::k_wrong_result ? "wrong_result" : "unsupported";
      recorded.report.note = call.status().message().what;
      recorded.report.verified = false;
    }
    d.candidates.push_back(std::move(recorded));
  }
}

void measure_memory(Deciding& d) {
  d.candidates[0].report.peak_bytes = measure_peak(d, d.candidates[0]);
  const int64_t eager_process = d.eager_process_bytes + d.candidates[0].report.peak_bytes;
  const double allowed = (1 + d.session.options.memory_limit) * static_cast<double>(eager_process);
  for (size_t i = 1; i < d.candidates.size(); ++i) {
    Candidate& candidate = d.candidates[i];
    if (!candidate.call || !candidate.report.verified) continue;
    const int64_t held = candidate.is_plan() ? candidate.built.plan->arena_bytes() + candidate.built.constant_bytes : 0;
    candidate.report.peak_bytes = held + measure_peak(d, candidate);
    if (static_cast<double>(d.eager_process_bytes + candidate.report.peak_bytes) > allowed) {
      candidate.report.reason = "memory";
      candidate.report.note = "the process would need " + std::to_string((d.eager_process_bytes + candidate.report.peak_bytes) >> 20) +
                              " MiB, an eager one " + std::to_string(eager_process >> 20) + " MiB";
      candidate.call = nullptr;
    }
  }
  (void)d.trials.restore();
}

// Without a race: eager, or where compiled code is forced one of the plans that are right, another one for another model.
size_t choose_untimed(Deciding& d) {
  std::vector<size_t> plans;
  std::string hashes;
  for (size_t i = 0; i < d.candidates.size(); ++i) {
    Candidate& candidate = d.candidates[i];
    if (!candidate.call || !candidate.report.verified) continue;
    candidate.report.reason = i == 0 ? "baseline" : "not_raced";
    if (candidate.report.plugin.empty()) continue;
    plans.push_back(i);
    for (const std::string& hash : candidate.built.hashes()) hashes += hash;
  }
  d.keeps_decision = false;
  if (d.session.options.force != "compiled" || plans.empty()) return 0;
  const size_t chosen = plans[sha256(hashes.data(), hashes.size())[0] % plans.size()];
  d.candidates[chosen].report.reason = "forced";
  return chosen;
}

// The one that was asked for.
Result<size_t> choose_named(Deciding& d) {
  const std::string& name = d.session.options.only_candidate;
  d.keeps_decision = false;
  std::string names;
  for (size_t i = 0; i < d.candidates.size(); ++i) {
    Candidate& candidate = d.candidates[i];
    names += (i ? ", " : "") + candidate.report.name;
    if (candidate.report.name != name) continue;
    if (!candidate.call || (!candidate.report.verified && !candidate.baseline))
      return Status(candidate.report.reason == "wrong_result" ? Code::k_wrong_result : Code::k_unsupported,
                    Message{"the candidate \"" + name + "\" cannot answer: " + candidate.report.reason, candidate.report.note, {}, {}});
    candidate.report.reason = "forced";
    return i;
  }
  return Status(Code::k_unsupported, Message{"no candidate is called \"" + name + "\"", {}, {}, "there are: " + names});
}

Result<size_t> race_candidates(Deciding& d) {
  if (!d.session.options.only_candidate.empty()) return choose_named(d);
  if (d.session.options.race_seconds <= 0) return choose_untimed(d);
  KRN_TRY_LET(d.raced, d.trials.own_copies(d.inputs));
  std::vector<Runner> runners;
  std::vector<size_t> of_runner;
  size_t replay_runner = 0;
  for (size_t i = 0; i < d.candidates.size(); ++i) {
    Candidate& candidate = d.candidates[i];
    if (!candidate.call || (i > 0 && !candidate.report.verified && !candidate.baseline)) continue;
    if (i == d.launch_replay && i > 0) replay_runner = runners.size();
    runners.push_back(runner_of(d, candidate));
    of_runner.push_back(i);
  }
  ProcessInterference interference(!runs_in_worker(d));
  RaceOptions options = race_options(d, interference);
  d.progress("race", 0.5);
  if (d.session.options.measure_again) {  // its figures are published
    options.confirm_ns = std::min<uint64_t>(kConfirmNs, options.limit_ns / 4);
    if (d.session.device.kind == Device::kCpu && d.services.num_threads() > 1 && !d.session.options.interference)
      options.apart_ns = processors_apart_ns;
  }
  if (d.session.options.force == "compiled")
    for (size_t r = 0; r < of_runner.size(); ++r)
      if (!d.candidates[of_runner[r]].report.plugin.empty()) options.one_must_race.push_back(r);
  if (runners.size() == 2) options.one_must_race.push_back(1);  // one look that others disturbed would decide
  auto raced = time_or_count(d, runners, replay_runner, options);
  if (d.count && raced.status().code() == Code::k_unsupported) {
    d.report.reasons.insert(d.report.reasons.begin(), raced.status().message().what + ": nothing is compared");
    return choose_untimed(d);
  }
  KRN_TRY_LET(const RaceSheet sheet, std::move(raced));
  d.keeps_decision = sheet.disturbed.empty();
  d.race_disturbed = sheet.disturbed;
  for (size_t r = 0; r < sheet.rows.size(); ++r) {
    const RaceRow& row = sheet.rows[r];
    CandidateReport& report = d.candidates[of_runner[r]].report;
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
  KRN_TRY(d.trials.restore());
  d.report.disturbed = disturbance(sheet);
  d.report.processors_apart_ns = sheet.apart_ns;
  const Winner named =
      name_winner(d, sheet, of_runner, [&] { return faster_beside_others(d, runners, options, of_runner); });
  KRN_TRY(d.trials.restore());
  const size_t winner = named.candidate;
  if (!named.why.empty()) d.report.reasons.insert(d.report.reasons.begin(), named.why);
  if (d.candidates[winner].report.reason == "disturbed") d.report.disturbed = d.candidates[winner].report.note;
  if (!d.report.disturbed.empty())
    for (Candidate& candidate : d.candidates) candidate.report.milliseconds = 0;
  if (!d.session.options.force.empty()) d.candidates[winner].report.reason = "forced";
  d.report.eager_replay_ms = replay_runner ? d.candidates[d.launch_replay].report.milliseconds : 0;
  // The times of one race stand beside each other: the baseline's is that of the winner's own.
  const auto of_winner = std::find(of_runner.begin(), of_runner.end(), winner);
  const RaceRow* row = of_winner == of_runner.end() ? nullptr : &sheet.rows[static_cast<size_t>(of_winner - of_runner.begin())];
  if (row && row->baseline_ns > 0 && d.report.disturbed.empty()) {
    d.candidates[of_runner[sheet.baseline]].report.milliseconds = row->baseline_ns / 1e6;
    if (replay_runner && sheet.baseline == replay_runner) d.report.eager_replay_ms = row->baseline_ns / 1e6;
  }
  return winner;
}

Result<bool> is_faster(Deciding& d, const Candidate& candidate, const Candidate& held) {
  ProcessInterference interference(!runs_in_worker(d));
  RaceOptions options = race_options(d, interference);
  options.limit_ns = std::min(options.limit_ns, kPairNs);
  const Result<RaceSheet> sheet = time_or_count(d, {runner_of(d, held), runner_of(d, candidate)}, 0, options);
  KRN_TRY(d.trials.restore());
  KRN_TRY(sheet.status());
  return sheet->winner == 1;
}

StepReport step_report(const PlanStep& step, const std::string& plugin, double microseconds) {
  return {step.name, step.executable ? plugin : "eager", step.num_ops, step.launches, microseconds, 0, -1, step.reason, step.note};
}

// What eager's call spends in the nodes that the plan's eager steps stand for, where instructions are counted. A node that several steps
// stand for counts with the first one; a step of nodes that eager did not run has nothing.
void count_in_eager(Deciding& d, const std::vector<PlanStep>& steps) {
  if (!d.count || !d.count->address()) return;
  if (!d.trials.put_back_positions(d.raced).ok()) return;
  Result<std::map<std::string, uint64_t>> counted = d.session.eager->count_nodes(d.raced, d.count->address());
  if (!counted.ok()) return;
  for (size_t s = 0; s < steps.size(); ++s) {
    if (steps[s].executable) continue;
    const std::string nodes = steps[s].origin.substr(0, steps[s].origin.find(" @ "));
    double sum = 0;
    bool known = !nodes.empty();
    for (size_t from = 0, to = 0; known && to != std::string::npos; from = to + 2) {
      to = nodes.find(", ", from);
      const auto node = counted->find(nodes.substr(from, to == std::string::npos ? to : to - from));
      known = node != counted->end();
      if (known) sum += static_cast<double>(std::exchange(node->second, 0)) / 1e3;
    }
    if (known) d.report.steps[s].in_eager = sum;
  }
}

// The steps of a plan, with microseconds that are medians over a few timed runs; without, where the race was disturbed. Where instructions
// are counted, thousands of them, of one run.
void time_steps(Deciding& d, const Candidate& candidate) {
  constexpr size_t kRuns = 5, kMostRuns = 25;
  if (d.raced.size() != d.inputs.size()) return;  // nothing was
  const std::vector<PlanStep>& steps = candidate.built.plan->steps();
  std::vector<std::vector<double>> us_of_steps(steps.size());
  std::vector<double> overheads;
  ProcessInterference interference(!runs_in_worker(d));
  size_t disturbed = 0;
  for (size_t i = 0; i < kMostRuns && overheads.size() < kRuns && d.report.disturbed.empty(); ++i) {
    std::vector<double> step_us;
    if (!d.trials.put_back_positions(d.raced).ok()) return;
    const Stretch stretch(interference);
    const uint64_t start = ticks();
    const uint64_t* count = d.count ? d.count->address() : nullptr;
    const Result<Tensors> outputs = candidate.built.plan->run_timed(d.raced, step_us, count);  // freeing them is the caller's time
    if (!outputs.ok()) return;
    if (d.count) {
      for (size_t s = 0; s < steps.size(); ++s) us_of_steps[s].push_back(step_us[s]);
      break;
    }
    const double us = static_cast<double>(ticks() - start) * microseconds_per_tick();
    if (!stretch.was_quiet(us * 1e3) && ++disturbed + kRuns <= kMostRuns) continue;
    overheads.push_back(us - std::accumulate(step_us.begin(), step_us.end(), 0.0));
    for (size_t s = 0; s < steps.size(); ++s) us_of_steps[s].push_back(step_us[s]);
  }
  if (disturbed + kRuns > kMostRuns)
    d.report.reasons.push_back("the times of steps were taken while others had the processor");
  d.report.steps_of = candidate.report.name;
  if (!d.count) d.report.call_overhead_us = median(overheads);
  for (size_t s = 0; s < steps.size(); ++s)
    d.report.steps.push_back(step_report(steps[s], candidate.report.plugin, median(us_of_steps[s])));
  count_in_eager(d, steps);
  (void)d.trials.restore();
}

}  // namespace keirin
