// SPDX-License-Identifier: Apache-2.0
#include "core/exec/report.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "core/exec/table.h"

namespace keirin {
namespace {

std::string first_value(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.rfind(key, 0) == 0)
      if (size_t colon = line.find(':'); colon != std::string::npos && colon + 2 <= line.size()) return line.substr(colon + 2);
  return {};
}

std::string milliseconds(double ms) {
  if (ms <= 0) return "-";
  return ms < 1 ? fmt::format("{:.4f}", ms) : fmt::format("{:.3f}", ms);
}

bool counts_instructions(const ModelReport& r) { return r.fitness == "counts"; }

// What a call takes, in the report's unit.
std::string cost(const ModelReport& r, double ms) {
  return counts_instructions(r) && ms > 0 ? fmt::format("{:.0f}", ms * 1e6) : milliseconds(ms);
}
// 0: not known.
double share_of_limit(const ModelReport& r) { return r.disturbed.empty() && r.chosen_ms > 0 ? r.limit_ms / r.chosen_ms : 0; }
const char* unit(const ModelReport& r) { return counts_instructions(r) ? "instructions" : "ms"; }

std::string ratio(const ModelReport& r) {
  return r.disturbed.empty() ? fmt::format("{:.2f}x [{:.2f}, {:.2f}]", r.speedup, r.speedup_low, r.speedup_high) : "disturbed";
}

std::string verdict(const ModelReport& r) {
  if (!r.verified) return r.chosen + ": not verified";
  // Eager and the replays of it ("eager+launch_replay") are no compiled code.
  if (r.chosen.rfind("eager", 0) == 0 || r.chosen.rfind("replay", 0) == 0)
    return r.chosen + (r.reasons.empty() ? "" : ": " + r.reasons.front());
  return "compiled (" + r.chosen + ")" + (counts_instructions(r) ? ", by counts" : "");
}

// Who has the regions of what was chosen: "xnnpack 2". Empty where eager answers or steps are not known.
std::map<std::string, int> regions_by_plugin(const ModelReport& r) {
  std::map<std::string, int> out;
  if (r.steps_of != r.chosen) return out;
  for (const StepReport& step : r.steps)
    if (step.choice != "eager") ++out[step.choice];
  return out;
}

std::string text_of(const std::map<std::string, int>& counts) {
  std::string out;
  for (const auto& [name, count] : counts) out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name, count);
  return out.empty() ? "-" : out;
}

nlohmann::json size_json(const SizeReport& size) {
  nlohmann::json range = {size.min, nullptr};
  if (size.max > 0) range[1] = size.max;
  return {{"name", size.name}, {"value", size.value}, {"range", range}};
}

// What a reader can change about a reason code; nullptr: nothing.
const char* advice_of(const std::string& reason) {
  static const std::map<std::string, const char*> kAdvice = {
      {"disturbed", "run it again when the machine is quiet; keirin doctor says what disturbs"},
      {"inside_noise", "a longer race tells smaller gains apart: --race-limit 120"},
      {"opaque", "the operator table does not know these operators (keirin inspect counts them): export without them, or add rows"},
      {"refused", "the plugin says why: another dtype or layout at the export may do, or another plugin (keirin plugins --why)"},
      {"known_wrong", "keirin cache bad lists what answered wrong before, keirin cache forgive lets the plugin try again"},
      {"left_out", "alone they pay for no kernel: nothing, or --leave-one-out where they are many"},
      {"compile_failed", "keirin plugins --why, then the same command with --dump FOLDER: it holds what the plugin was given"},
      {"memory", "allow plans more memory with --memory-limit"},
      {"wrong_result", "keep it with --repro FOLDER; keirin repro FOLDER says whose fault it is"},
      {"unsupported", "no plugin takes these operators: keirin plugins --why, docs/write-a-plugin.md; or export the model without them"}};
  const auto found = kAdvice.find(reason);
  return found == kAdvice.end() ? nullptr : found->second;
}

}  // namespace

std::string model_at_sizes(const ModelReport& r) {
  std::string out = r.model;
  for (const SizeReport& size : r.sizes) out += (&size == r.sizes.data() ? " at " : ",") + std::to_string(size.value);
  return out;
}

nlohmann::json to_json(const ModelReport& r) {
  const auto timed = [&](double x) { return counts_instructions(r) ? nlohmann::json() : nlohmann::json(x); };
  const auto counted = [&](double x, double each) {
    return counts_instructions(r) ? nlohmann::json(std::llround(x * each)) : nlohmann::json();
  };
  nlohmann::json sizes = nlohmann::json::array();
  for (const SizeReport& size : r.sizes) sizes.push_back(size_json(size));
  nlohmann::json candidates = nlohmann::json::array();
  for (const CandidateReport& c : r.candidates)
    candidates.push_back({{"name", c.name}, {"plugin", c.plugin}, {"reason", c.reason}, {"note", c.note},
                          {"verified", c.verified}, {"max_error", c.max_error}, {"eager_error", c.eager_error},
                          {"ms", timed(c.milliseconds)}, {"instructions", counted(c.milliseconds, 1e6)},
                          {"gain", c.gain}, {"gain_ci", {c.gain_low, c.gain_high}},
                          {"blocks", c.blocks}, {"compile_s", c.compile_seconds}, {"peak_bytes", c.peak_bytes}});
  nlohmann::json steps = nlohmann::json::array();
  for (const StepReport& s : r.steps)
    steps.push_back({{"name", s.name}, {"choice", s.choice}, {"ops", s.ops}, {"launches", s.launches}, {"us", timed(s.microseconds)},
                     {"limit_us", timed(s.limit_us)}, {"instructions", counted(s.microseconds, 1e3)},
                     {"instructions_in_eager", s.in_eager < 0 ? nlohmann::json() : counted(s.in_eager, 1e3)},
                     {"reason", s.reason}, {"note", s.note}});
  nlohmann::json segments = nlohmann::json::array();
  for (const SegmentReport& s : r.segments)
    segments.push_back({{"name", s.name},
                        {"sizes", s.sizes},
                        {"choice", s.choice},
                        {"nodes", s.nodes},
                        {"nodes_compiled", s.nodes_compiled},
                        {"runs", s.runs},
                        {"share", s.share},
                        {"speedup", s.speedup},
                        {"note", s.note}});
  nlohmann::json ranges = nlohmann::json::array(), checked = nlohmann::json::array(), range_sizes = nlohmann::json::array();
  for (const RangeReport& range : r.ranges.ranges)
    ranges.push_back({{"volume", {range.least, range.most}}, {"choice", range.choice}, {"closed", range.closed}});
  for (const CheckedReport& check : r.ranges.checked)
    checked.push_back({{"sizes", check.sizes}, {"chosen", check.chosen}, {"disturbed", check.disturbed}, {"wrong", check.wrong}});
  for (const SizeReport& size : r.ranges.sizes) range_sizes.push_back({{"name", size.name}, {"range", {size.min, size.max}}});
  nlohmann::json enter_stages = nlohmann::json::object(), left_to_eager = nlohmann::json::object();
  for (const auto& [why, calls] : r.ranges.left_to_eager) left_to_eager[why] = calls;
  for (const auto& [name, seconds] : r.ranges.enter_seconds) enter_stages[name] = seconds;
  nlohmann::json bucket_sizes = nlohmann::json::array();
  for (const BucketSizeReport& size : r.buckets.sizes)
    bucket_sizes.push_back({{"name", size.name}, {"policy", size.policy}, {"asked", size.asked}, {"ran", size.ran}});
  nlohmann::json stages = nlohmann::json::object();
  for (const auto& [name, seconds] : r.stage_seconds) stages[name] = stages.value(name, 0.0) + seconds;  // one may come again
  const auto figure = [&](double x) { return r.disturbed.empty() ? nlohmann::json(x) : nlohmann::json(); };
  return {{"model", r.model}, {"sizes", sizes}, {"inputs", r.inputs}, {"device", r.device}, {"plugin", r.plugin}, {"mode", r.mode},
          {"threads", r.threads}, {"disturbed", r.disturbed}, {"fitness", r.fitness},
          {"eager_ms", timed(r.eager_ms)}, {"eager_replay_ms", timed(r.eager_replay_ms)}, {"compiled_ms", timed(r.compiled_ms)},
          {"chosen", r.chosen}, {"chosen_ms", timed(r.chosen_ms)}, {"limit_ms", timed(r.limit_ms)},
          {"share_of_limit", share_of_limit(r) > 0 ? nlohmann::json(share_of_limit(r)) : nlohmann::json()}, {"speedup", figure(r.speedup)},
          {"speedup_ci", {figure(r.speedup_low), figure(r.speedup_high)}}, {"compile_s", r.compile_seconds},
          {"warm_start_s", r.warm_start_seconds}, {"peak_bytes", r.peak_bytes}, {"eager_peak_bytes", r.eager_peak_bytes},
          {"max_error", r.max_error}, {"eager_error", r.eager_error}, {"verified", r.verified}, {"nodes", r.nodes},
          {"nodes_compiled", r.nodes_compiled}, {"nodes_opaque", r.nodes_opaque}, {"eager_share", r.eager_share},
          {"pays_back_after_calls", r.pays_back_after_calls}, {"kernels_generated", r.kernels_generated},
          {"processors_apart_ns", r.processors_apart_ns > 0 ? nlohmann::json(std::lround(r.processors_apart_ns)) : nlohmann::json()},
          {"call_overhead_us", r.call_overhead_us},
          {"latency", {{"calls", r.latency.calls}, {"p50_ms", r.latency.p50_ms}, {"p90_ms", r.latency.p90_ms}, {"p99_ms", r.latency.p99_ms},
                       {"calls_per_s", r.latency.calls_per_s}, {"samples_per_s", r.latency.samples_per_s}}},
          {"calls_unadmitted", r.calls_unadmitted},
          {"compiles_on_requests", r.compiles_on_requests},
          {"reasons", r.reasons}, {"candidates", candidates}, {"steps", steps}, {"steps_of", r.steps_of},
          {"segments", segments}, {"segments_answered", r.segments_answered}, {"segments_unadmitted", r.segments_unadmitted},
          {"ranges", {{"sizes", range_sizes}, {"ranges", ranges}, {"checked", checked}, {"entered", r.ranges.entered},
                      {"at_once", r.ranges.at_once}, {"at_once_ms", r.ranges.at_once_ms}, {"left_to_eager", left_to_eager},
                      {"stages", enter_stages}, {"kernels_generated", r.ranges.kernels_generated}, {"let_go", r.ranges.let_go},
                      {"learned", r.ranges.learned}, {"not_learned", r.ranges.not_learned},
                      {"rehearsed", r.ranges.rehearsed}}},
          {"buckets", {{"calls", r.buckets.calls}, {"left", r.buckets.left}, {"closed", r.buckets.closed}, {"sizes", bucket_sizes}}},
          {"stages", stages}};
}

nlohmann::json machine_json() {
  utsname system{};
  uname(&system);
  const std::string flags = first_value("/proc/cpuinfo", "flags");
  return {{"cpu", first_value("/proc/cpuinfo", "model name")},
          {"flags", flags.empty() ? first_value("/proc/cpuinfo", "Features") : flags},  // as x86 and as ARM calls them
          {"cores", std::thread::hardware_concurrency()},
          {"memory_bytes", static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE)},
          {"kernel", std::string(system.release)},
          {"arch", std::string(system.machine)}};
}

nlohmann::json bench_json(const std::vector<ModelReport>& reports) {
  nlohmann::json rows = nlohmann::json::array();
  for (const ModelReport& report : reports) rows.push_back(to_json(report));
  return {{"schema", "keirin/bench/1"}, {"machine", machine_json()}, {"rows", rows}};
}

std::string bench_table(const std::vector<ModelReport>& reports, size_t width) {
  const std::string unit = reports.empty() ? "ms" : keirin::unit(reports.front());
  std::vector<std::vector<std::string>> rows = {{"model", "device", "eager " + unit, "replay " + unit, "compiled " + unit, "speedup [95 %]",
                                                 "of limit", "compile s", "peak MB (eager)", "max error (eager)", "nodes compiled",
                                                 "regions", "generated", "pays back", "p50 ms", "p90 ms", "p99 ms", "samples/s",
                                                 "verdict"}};
  double log_sum = 0;
  std::map<std::string, int> regions;
  int64_t nodes = 0, compiled = 0, opaque = 0, verified = 0, slower = 0, generated = 0, generating = 0, faster = 0, disturbed = 0;
  for (const ModelReport& r : reports) {
    if (r.disturbed.empty()) log_sum += std::log(r.speedup);
    else ++disturbed;
    nodes += r.nodes, compiled += r.nodes_compiled, opaque += r.nodes_opaque;
    verified += r.verified, slower += r.disturbed.empty() && r.speedup < 1, faster += r.pays_back_after_calls > 0;
    generated += r.kernels_generated, generating += r.kernels_generated > 0;
    for (const auto& [plugin, count] : regions_by_plugin(r)) regions[plugin] += count;
    rows.push_back({model_at_sizes(r), r.device, cost(r, r.eager_ms), cost(r, r.eager_replay_ms),
                    cost(r, r.compiled_ms), ratio(r), share_of_limit(r) > 0 ? fmt::format("{:.0f} %", share_of_limit(r) * 100) : "-",
                    fmt::format("{:.2f}", r.compile_seconds),
                    fmt::format("{:.0f} ({:.0f})", static_cast<double>(r.peak_bytes) / 1e6, static_cast<double>(r.eager_peak_bytes) / 1e6),
                    fmt::format("{:.1e} ({:.1e})", r.max_error, r.eager_error),
                    fmt::format("{}/{}", r.nodes_compiled, r.nodes) + (r.nodes_opaque ? fmt::format(" ({} opaque)", r.nodes_opaque) : ""),
                    text_of(regions_by_plugin(r)), std::to_string(r.kernels_generated),
                    r.pays_back_after_calls ? fmt::format("{} calls", r.pays_back_after_calls) : "-", milliseconds(r.latency.p50_ms),
                    milliseconds(r.latency.p90_ms), milliseconds(r.latency.p99_ms),
                    r.latency.calls ? fmt::format("{:.0f}", r.latency.samples_per_s) : "-", verdict(r)});
  }
  static const std::vector<std::string> kFirstOut = {
      "generated", "p90 ms",         "peak MB (eager)",   "device",    "samples/s",     "p99 ms", "p50 ms", "compile s",
      "of limit",  "nodes compiled", "max error (eager)", "pays back", "replay " + unit, "regions"};
  std::string out = render_table(rows, kFirstOut, width);
  if (reports.size() < 2) return out;
  const auto told = static_cast<int64_t>(reports.size()) - disturbed;
  const double per_node = nodes ? 100.0 / static_cast<double>(nodes) : 0;
  if (told > 0)
    out += fmt::format("geomean speedup over {} models: {:.3f}x; compiled code is faster and chosen in {}, below 1.0x: {}; verified: {}\n",
                       told, std::exp(log_sum / static_cast<double>(told)), faster, slower, verified);
  if (disturbed > 0)
    out += fmt::format("disturbed: {} of {} rows have no figures, because other programs used the machine; run it again when it is quiet\n",
                       disturbed, reports.size());
  if (!regions.empty()) out += fmt::format("regions that were chosen, by plugin: {}\n", text_of(regions));
  out +=
      fmt::format("nodes: {}, compiled {:.1f} %, opaque {:.1f} %; kernels for which code was generated: {}, in {} of {} rows\n", nodes,
                  static_cast<double>(compiled) * per_node, static_cast<double>(opaque) * per_node, generated, generating, reports.size());
  return out;
}

std::string costs_table(const std::vector<ModelReport>& reports, size_t width) {
  std::vector<std::vector<std::string>> rows = {
      {"model", "cold compile s", "warm start ms", "call overhead us", "peak MB", "eager's peak MB", "chosen"}};
  for (const ModelReport& r : reports)
    rows.push_back({model_at_sizes(r), fmt::format("{:.3f}", r.compile_seconds),
                    r.warm_start_seconds > 0 ? fmt::format("{:.1f}", r.warm_start_seconds * 1e3) : "-",
                    fmt::format("{:.1f}", r.call_overhead_us), fmt::format("{:.1f}", static_cast<double>(r.peak_bytes) / 1e6),
                    fmt::format("{:.1f}", static_cast<double>(r.eager_peak_bytes) / 1e6), r.chosen});
  return render_table(rows, {"eager's peak MB", "peak MB"}, width);
}

std::string verdict_text(const ModelReport& r) {
  return fmt::format("{} on {}, {} threads: {}", r.model, r.device, r.threads, r.chosen) +
         (r.disturbed.empty() ? fmt::format(" at {} {}, {} over the baseline", cost(r, r.chosen_ms), unit(r), ratio(r))
                              : fmt::format("; the race was disturbed: {}", r.disturbed));
}

std::string explain_text(const ModelReport& r, size_t width) {
  std::string out = verdict_text(r) + "\n";
  for (const SizeReport& size : r.sizes)
    out += fmt::format("  {} = {}, the export allows {} to {}\n", size.name, size.value, size.min,
                       size.max > 0 ? std::to_string(size.max) : "any");
  std::vector<std::vector<std::string>> rows = {{"candidate", unit(r), "gain [95 %]", "blocks", "error (eager)", "reason", "note"}};
  for (const CandidateReport& c : r.candidates)
    rows.push_back({c.name, cost(r, c.milliseconds),
                    c.blocks ? fmt::format("{:.3f} [{:.3f}, {:.3f}]", c.gain, c.gain_low, c.gain_high) : "-",
                    std::to_string(c.blocks), fmt::format("{:.1e} ({:.1e})", c.max_error, c.eager_error), c.reason, c.note});
  out += render_table(rows, {"blocks", "error (eager)"}, width);
  if (!r.steps.empty()) {
    out += "steps of " + r.steps_of + (r.steps_of == r.chosen ? ":\n" : ", which was not chosen:\n");
    const char* const cost_unit = counts_instructions(r) ? "instructions" : "us";
    // Without the limit's columns where none is known.
    const bool limits = std::any_of(r.steps.begin(), r.steps.end(), [](const StepReport& s) { return s.limit_us > 0; });
    std::vector<std::vector<std::string>> steps = {{"step", "choice", "ops", cost_unit, "share", "limit us", "lost us", "reason", "note"}};
    double all = 0;
    for (const StepReport& s : r.steps) all += s.microseconds;
    for (const StepReport& s : r.steps) {
      const std::string took = counts_instructions(r) ? cost(r, s.microseconds / 1e3) : fmt::format("{:.1f}", s.microseconds);
      steps.push_back({s.name, s.choice, std::to_string(s.ops), s.microseconds > 0 ? took : "-",
                       s.microseconds > 0 ? fmt::format("{:.0f} %", s.microseconds / all * 100) : "-",
                       s.limit_us > 0 ? fmt::format("{:.1f}", s.limit_us) : "-",
                       s.limit_us > 0 && s.microseconds > 0 ? fmt::format("{:.1f}", std::max(0.0, s.microseconds - s.limit_us)) : "-",
                       s.reason, s.note});
    }
    if (!limits)
      for (std::vector<std::string>& row : steps) row.erase(row.begin() + 5, row.begin() + 7);
    out += render_table(steps, {"share", "reason"}, width);
  }
  if (share_of_limit(r) > 0)
    out += fmt::format(
        "the machine's limit for a call is {} ms ({:.0f} % reached): what has to be moved and multiplied, at rates measured here\n",
        milliseconds(r.limit_ms), share_of_limit(r) * 100);
  if (!r.segments.empty()) {
    out += "segments, between which sizes or branches depend on data:\n";
    std::vector<std::vector<std::string>> segments = {{"segment", "sizes", "runs", "share", "compiled", "speedup", "choice", "note"}};
    for (const SegmentReport& s : r.segments)
      segments.push_back({s.name, s.sizes.empty() ? "-" : s.sizes, std::to_string(s.runs), fmt::format("{:.1f} %", s.share * 100),
                          fmt::format("{}/{}", s.nodes_compiled, s.nodes), fmt::format("{:.2f}x", s.speedup), s.choice, s.note});
    out += render_table(segments, {"runs", "sizes"}, width);
  }
  if (!r.ranges.ranges.empty()) {
    std::string sizes;
    for (const SizeReport& size : r.ranges.sizes)
      sizes += fmt::format("{}{} from {} to {}", sizes.empty() ? "" : ", ", size.name, size.min, size.max);
    out += fmt::format("ranges ({}; {} sizes entered, {} of them at once, {} kernels generated, {} plans let go):\n", sizes,
                       r.ranges.entered, r.ranges.at_once, r.ranges.kernels_generated, r.ranges.let_go);
    for (const RangeReport& range : r.ranges.ranges)
      out += fmt::format("  product {} to {}: {}\n", range.least, range.most,
                         range.choice + (range.closed.empty() ? "" : ", closed: " + range.closed));
    for (const std::string& why : r.ranges.not_learned) out += fmt::format("  graphs are captured size by size: {}\n", why);
    for (const auto& [why, calls] : r.ranges.left_to_eager) out += fmt::format("  calls left to eager: {}, {}\n", calls, why);
    for (const CheckedReport& check : r.ranges.checked)
      out += fmt::format("  checked at {}: {}\n", check.sizes, check.chosen + (check.disturbed ? ", the race was disturbed" : "") +
                                                                    (check.wrong.empty() ? "" : "; " + check.wrong));
  }
  if (!r.buckets.sizes.empty()) {
    out += fmt::format("buckets ({} padded calls, {} left to eager, to which too much would have been padding{}):\n", r.buckets.calls,
                       r.buckets.left, r.buckets.closed.empty() ? "" : "; closed: " + r.buckets.closed);
    for (const BucketSizeReport& size : r.buckets.sizes)
      out += fmt::format("  {} to {}: {:.1f} % of what ran was padding\n", size.name, size.policy,
                         size.ran > 0 ? 100 * static_cast<double>(size.ran - size.asked) / static_cast<double>(size.ran) : 0);
  }
  for (const std::string& reason : r.reasons) out += "  " + reason + "\n";
  std::set<std::string> codes;
  for (const CandidateReport& c : r.candidates) codes.insert(c.reason);
  for (const StepReport& s : r.steps) codes.insert(s.reason);
  for (const std::string& code : codes)
    if (const char* advice = advice_of(code)) out += fmt::format("  to change \"{}\": {}\n", code, advice);
  return out;
}

}  // namespace keirin
