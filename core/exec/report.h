// SPDX-License-Identifier: Apache-2.0
//
// What happened to a model, as data: every stage appends, `keirin bench` and `keirin explain` print, `--json` writes. The field
// names of the JSON are documented in docs/report.md; a field is added, never renamed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace keirin {

// One way of running the model that was considered.
struct CandidateReport {
  std::string name;          // "eager", "replay", "cpu/all", "cpu/no_anchors"
  std::string plugin;        // empty for eager and replay
  std::string reason;        // reason code: faster inside_noise slower not_raced disturbed wrong_result memory ... (docs/report.md)
  std::string note;          // the reason in words
  bool verified = false;
  double max_error = 0, eager_error = 0;  // largest over the outputs, relative to the referee's largest element
  double milliseconds = 0;                // median of the race or of the screen; 0 if never timed, or disturbed; see ModelReport::fitness
  double gain = 0, gain_low = 0, gain_high = 0;  // time of the baseline over its own, Hodges-Lehmann, 95 % or more
  int blocks = 0;
  double compile_seconds = 0;
  int64_t peak_bytes = 0;
  bool repaired = false;     // a plan without what was judged wrong in it
  std::string wrong_of_others;  // how it was wrong as it would be made of plans of other sizes: no size that is not checked gets it
};

// One step of the chosen plan (or of the best one, if eager was chosen).
struct StepReport {
  std::string name;      // "r0", or the operator of an eager step
  std::string choice;    // the plugin's name, or "eager"
  int ops = 0;
  int launches = 0;      // of a region: kernels and library calls that it runs
  double microseconds = 0;
  double limit_us = 0;   // the least that any code could take for it (core/api/limits.h); 0: not asked for, or not known
  double in_eager = -1;  // the same of eager's call, in the nodes of the file that an eager step stands for; -1: not counted
  std::string reason;    // why an eager step is eager: opaque refused known_wrong left_out compile_failed (docs/report.md)
  std::string note;      // in words; of a region: how many kernels and library calls it came to
};

// A segment of a model whose sizes or branches depend on data, at one set of sizes; segments that no decision was made for have one
// row too.
struct SegmentReport {
  std::string name;          // "linear .. gt": its first and its last node
  std::string sizes;         // of what it reads: "f32[12,16], 12"; empty: nothing was decided
  std::string choice;        // what its own race chose
  int nodes = 0, nodes_compiled = 0;
  int runs = 0;              // in one call
  double share = 0;          // of eager's time for a call, all its runs
  double speedup = 1;        // of its own race
  std::string note;
};

// A size of the inputs that the export left free.
struct SizeReport {
  std::string name;          // "x[0]": the input and the dimension where it stands first
  int64_t value = 0;
  int64_t min = 1, max = 0;  // that the export allows; max 0: no limit is known
};

// Sizes of which no one was decided by itself: a plan is made when one is met, as the range's choice says.
struct RangeReport {
  int64_t least = 0, most = 0;  // products of the free sizes
  std::string choice;
  std::string closed;           // why eager answers it now; empty: it stands
};

// The sizes at which everything was decided, so that one between needs no decision.
struct CheckedReport {
  std::string sizes;            // "8,128"
  std::string chosen;
  bool disturbed = false;
  std::string wrong;            // CandidateReport::wrong_of_others of one of its candidates
};

struct RangesReport {
  std::vector<SizeReport> sizes;  // `min` and `max`: what the ranges hold
  std::vector<RangeReport> ranges;  // ascending; empty: there are none
  std::vector<CheckedReport> checked;
  uint64_t entered = 0;           // sizes that a plan was made for, by the choice of their range
  uint64_t at_once = 0;           // of them, those whose plan was made of what was there
  double at_once_ms = 0;          // what that took, the median of the last ones; 0: not known
  uint64_t kernels_generated = 0; // while it was
  std::vector<std::pair<std::string, double>> enter_seconds;  // by stage, of all of them
  std::vector<std::pair<std::string, uint64_t>> left_to_eager;  // why a call of new sizes did not wait for a plan, and how many did not
  uint64_t let_go = 0;            // plans that made room (option plan_memory)
  uint64_t learned = 0;           // kinds of sizes whose graphs are known without being captured
  std::vector<std::string> not_learned;  // why there are others
  uint64_t rehearsed = 0;         // plans made of these kinds beside calls and let go, so that plugins know what calls will wait for
};

// A size that calls are padded in.
struct BucketSizeReport {
  std::string name, policy;     // "x[0]", "pow2"
  int64_t asked = 0, ran = 0;   // sums over the padded calls that plans answered: as they came, as they ran; the rest is waste
};

struct BucketsReport {
  uint64_t calls = 0;           // padded ones that plans answered
  uint64_t left = 0;            // that eager answered as they came, because so much would have been padding that the gain was lost
  std::string closed;           // why none is any more; empty: they are
  std::vector<BucketSizeReport> sizes;  // empty: nothing is padded
};

// Calls timed one by one, as a service would see them, by `keirin bench` after the decision.
struct LatencyReport {
  int calls = 0;                              // 0: none was timed, or others had the machine
  double p50_ms = 0, p90_ms = 0, p99_ms = 0;  // p99 of fewer than 100 calls is the slowest one
  double calls_per_s = 0, samples_per_s = 0;  // one after the other; a call has as many samples as its first input has rows
};

struct ModelReport {
  std::string model, device, plugin, mode;
  std::string fitness = "time";       // what candidates are compared by; "counts": instructions, a million for each ms of the fields
  std::vector<SizeReport> sizes;      // empty: the export fixed them all
  std::vector<std::string> inputs;    // "f32[8,128]", by position
  int threads = 0;
  double eager_ms = 0, eager_replay_ms = 0, compiled_ms = 0, chosen_ms = 0;
  std::string chosen;
  double limit_ms = 0;                // the least that any code could take for a call (core/api/limits.h); 0: not asked for, or not known
  double speedup = 1, speedup_low = 1, speedup_high = 1;  // over the better of eager and eager with replay; 1 if disturbed
  double processors_apart_ns = 0;     // where the race of the figure was held (core/tune/processors.h); 0: nobody tells
  std::string disturbed;              // why this race told nothing that may be shown or kept; empty: it did
  double compile_seconds = 0, warm_start_seconds = 0;
  int64_t peak_bytes = 0, eager_peak_bytes = 0;
  double max_error = 0, eager_error = 0;
  bool verified = false;
  int nodes = 0, nodes_compiled = 0, nodes_opaque = 0;
  double eager_share = 0;             // of a call's time, in eager steps of what was chosen: 1 where eager or its replay answers
  int64_t pays_back_after_calls = 0;  // 0: never, nothing compiled is chosen
  int kernels_generated = 0;          // while this shape was compiled: 0 for a further size of the same model
  uint64_t calls_unadmitted = 0;      // of the session so far: answered by eager because no decision was made for such calls
  uint64_t compiles_on_requests = 0;  // of the process so far: code that was compiled by a thread that answered a call; has to be 0
  double call_overhead_us = 0;        // of the best compiled plan: a call less its steps, which run kernels and library calls
  LatencyReport latency;
  std::vector<std::string> reasons;   // why not more: one line each, most important first
  std::vector<CandidateReport> candidates;
  std::vector<StepReport> steps;
  std::string steps_of;               // the candidate that they are of
  std::vector<SegmentReport> segments;  // empty: the model is one graph
  uint64_t segments_answered = 0;     // of the session so far: by their plans
  uint64_t segments_unadmitted = 0;   // by eager, because nothing was decided for their sizes
  RangesReport ranges;                // of the session so far
  BucketsReport buckets;              // the same
  std::vector<std::pair<std::string, double>> stage_seconds;  // capture, pass names, compile, verify, race
};

// "bert at 8,128": the model and its free sizes.
std::string model_at_sizes(const ModelReport& report);
nlohmann::json to_json(const ModelReport& report);
// {"schema": "keirin/bench/1", "machine": {...}, "rows": [...]}
nlohmann::json bench_json(const std::vector<ModelReport>& reports);
// CPU model, cores, features, memory, kernel: what a figure was taken on.
nlohmann::json machine_json();

// The one table over all models and what it comes to, ASCII, ending in a newline. `width` of tables: core/exec/table.h.
std::string bench_table(const std::vector<ModelReport>& reports, size_t width = 0);
// What it costs to start and to call: one row a model.
std::string costs_table(const std::vector<ModelReport>& reports, size_t width = 0);
// What was decided, as one line: "mlp on cpu, 2 threads: cpu/all at 0.01 ms, 1.50x over the baseline".
std::string verdict_text(const ModelReport& report);
// Candidates, steps and reasons of one model, and what to change.
std::string explain_text(const ModelReport& report, size_t width = 0);

}  // namespace keirin
