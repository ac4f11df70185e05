// SPDX-License-Identifier: Apache-2.0
//
// What a Session holds: the file's program and weights, eager, and per shape the runner that answers. Internal to core/api.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/api/buckets.h"
#include "core/api/bundle.h"
#include "core/api/call_guard.h"
#include "core/api/guard.h"
#include "core/api/met_call.h"
#include "core/api/plan_table.h"
#include "core/api/session.h"
#include "core/api/size_ranges.h"
#include "core/capture/pt2/read_pt2.h"
#include "core/capture/pt2/segments.h"
#include "core/eager/program/program.h"
#include "core/eager/rows/fold_evaluator.h"
#include "core/eager/weights/initial_values.h"
#include "core/eager/weights/weights.h"

namespace keirin {

// One way of answering calls of one shape. Kept alive by whoever runs it.
using CallFn = std::function<Result<std::vector<TensorRef>>(const std::vector<TensorRef>&)>;
// The same with memory of the caller's for outputs: Plan::run_into.
using CallIntoFn = std::function<Result<std::vector<TensorRef>>(const std::vector<TensorRef>& inputs, const std::vector<TensorRef>& given)>;

struct Decision {
  CallGuard admits;                // the calls that it was made for
  CallFn call;                     // empty: eager
  std::shared_ptr<PlanGuard> guard;  // watches `call`; null with it
  CallIntoFn into = {};            // empty: `call` has no use for memory of the caller's
  bool is_chain = false;           // an error of `call` is eager's own, and what came before it was written
  std::shared_ptr<const SizeRange> range = nullptr;  // whose choice it is; null: it was decided by itself
  double gain = 0;                 // of `call` over eager at its sizes, as it was raced; 0: not known
  uint64_t hot_after = 0;          // of a size that ranges hold: with so many calls it is decided by itself; 0: never
  int64_t bytes = 0;               // of a size that ranges hold, what it keeps; 0: it counts by number (max_shapes)

  uint64_t key() const { return admits.key(); }
};

class Chain;
class DecisionThread;
struct SizePattern;  // candidates.h
class SizedCapture;

struct Session::Impl {
  Impl(Runtime& runtime, Options options);
  ~Impl();

  Runtime& runtime;
  Options options;
  std::string name;
  std::string file_stamp;             // of what the file holds, or the weights: other weights are verified again
  Device device;
  pt2::Pt2File file;
  const pt2::Model* model = nullptr;  // in `file`
  std::optional<InitialValues> rules;
  WeightTable weights;                // on `device`; shared by eager and every plan
  std::unique_ptr<EagerProgram> eager;
  size_t must_vary = SIZE_MAX;        // JudgeOptions::must_vary, of a segment or a half of a training step: less than its outputs
  bool memory_in_place = false;       // Session::keep_memory_in_place
  bool inputs_belong_together = false;  // under compile_mutex: checks use values near the caller's: told, or drawn ones fail
  std::vector<size_t> written_elsewhere;  // weights that other segments may write: state, also where this one only reads
  pt2::Segments segments;             // of the program; of a segment's own session: none
  std::optional<OpenedBundle> bundle;  // that the file is
  std::unique_ptr<Chain> chain;       // null where the program may be captured as one graph

  // Immutable once published; a call takes a reference and uses it to the end.
  PlanTable<Decision> table;
  std::mutex compile_mutex;           // one compilation at a time
  mutable std::mutex report_mutex;
  std::vector<ModelReport> reports;
  std::deque<MetCall> decided;        // under report_mutex: calls that something was decided for, the last ones of them
  bool gives_way = false;             // under compile_mutex: the decision that is being made does, to whatever else wants the processor
  bool enters = false;                // under compile_mutex: a size of a range, of which nothing is kept on disk: there may be thousands
  std::vector<std::shared_ptr<const SizePattern>> patterns;  // under compile_mutex: of the sizes that were entered, the last ones
  std::vector<std::shared_ptr<const SizedCapture>> learned;  // under compile_mutex: the graph at sizes of a kind
  std::set<Sizes> kinds_to_learn;     // under compile_mutex: for which that was asked for, once
  std::atomic<bool> has_pattern{false};                      // there is one: read where the mutex is not waited for
  bool decides_anew = false;          // under compile_mutex: what a disturbed race chose is not taken, another race is held
  bool takes_over = false;            // under compile_mutex: what was decided elsewhere, and nothing else
  bool tries_known_wrong = false;     // plans hold what the judge found wrong, too: to look at it again
  bool wrote_other_sizes = false;     // under compile_mutex: the first decision writes code for later ones
  std::atomic<uint64_t> calls_unadmitted{0};  // eager answered although something was decided, for other calls
  // Session::Activity
  std::atomic<uint64_t> by_plan{0}, eager_chosen{0}, eager_undecided{0}, eager_instead{0}, eager_off{0}, eager_shadow{0};
  std::atomic<uint64_t> shadow_right{0}, shadow_wrong{0}, shadow_failed{0}, shadow_dropped{0}, shadow_not_compared{0};
  std::shared_ptr<std::atomic<Plans>> plans;  // all sessions of a model's: weights may be replaced while it is switched
  SizeRanges ranges;
  std::unique_ptr<Buckets> buckets;   // null: no size is padded
  FoldedConstants folded;
  CallChecker* checks = &checker;     // of a segment's session: the whole model's

  std::shared_ptr<const Decision> find(const std::vector<TensorRef>& inputs) const;
  // Session::compile.
  Result<ModelReport> compile(const std::vector<TensorRef>& inputs, bool beside_calls, bool anew = false);
  // Decides for drawn inputs of these sizes, so that ranges may be made of what is found; nobody waits for it.
  Result<CheckedSizes> check(const Sizes& sizes, bool anew);
  // Makes a plan as the range says, for calls like one with these inputs.
  Status enter(const std::shared_ptr<const SizeRange>& range, const std::vector<TensorRef>& inputs);
  // The same while the call waits, where that is expected to pay in this call alone and takes nothing but what is there: what answers it.
  // Null: eager does.
  std::shared_ptr<const Decision> enter_at_once(const std::vector<TensorRef>& inputs);
  // One of the caller's events (LoadOptions::on_event).
  void tell(Event::Kind kind, int level, const std::string& text, double done = 0) const;
  std::string why_not_beside_calls() const;  // Session::why_not_beside_calls
  // Session::take_over.
  Result<ModelReport> take_over(const std::vector<TensorRef>& inputs);
  void keep_report(const ModelReport& report, const std::vector<TensorRef>& inputs);
  bool never_compiles() const { return options.compile == When::kNever || takes_over; }
  // Session::call. `given`: memory that outputs may be made in (Plan::run_into); null: none.
  Result<std::vector<TensorRef>> call(const std::vector<TensorRef>& inputs, const std::vector<TensorRef>* given);
  // Of a decision that found these inputs, with a call: the plan's answer, or eager's where it failed. `keep` lives as
  // long as the answer may be checked.
  Result<std::vector<TensorRef>> answer(const Decision& decision, const std::vector<TensorRef>& inputs,
                                        const std::shared_ptr<const void>& keep = nullptr, const std::vector<TensorRef>* given = nullptr);
  // The call at its bucket's sizes; nullopt where it is answered as it is.
  Result<std::optional<PaddedCall>> pad(const std::vector<TensorRef>& inputs) const;
  // Of a padded call that a plan may answer: its answer, cut back. `inputs` are the call's own; eager answers them until the plan of the
  // bucket was looked at once, beside calls.
  Result<std::vector<TensorRef>> answer_padded(const std::shared_ptr<const Decision>& decision, const PaddedCall& padded,
                                               const std::vector<TensorRef>& inputs);
  // Looks, on copies of a call that eager has answered, whether the plan of its bucket answers alike.
  void look_at_bucket(const std::shared_ptr<const Decision>& decision, const Sizes& to, const std::vector<TensorRef>& inputs);
  // Of a call that eager has answered in the plan's place: whether the plan would have answered alike is found out beside calls.
  void shadow(const std::shared_ptr<const Decision>& decision, const std::vector<TensorRef>& inputs);
  // A run of the plan failed: it is asked no more, if nothing else will come of it.
  void note_failure(const Decision& decision, const Status& status);
  void publish(std::shared_ptr<const Decision> decision);  // any thread
  size_t make_room(PlanTable<Decision>::List& decisions, int64_t bytes) const;
  // Eager answers for these inputs from now on, and the reports say why.
  void revoke(const CallGuard& calls, const std::string& why);
  // The same for all sizes that were entered by the range's choice.
  void revoke(const std::shared_ptr<const SizeRange>& range, const std::string& why);
  void drop_range_plans(const std::string& choice);
  void add_reason(const std::vector<TensorSpec>& inputs, const std::string& reason);  // to the newest report of such calls
  // A report of calls that eager answers because nothing was decided for them.
  void note_undecided(const std::vector<TensorSpec>& inputs, const std::string& reason);
  // A report of calls that nothing was measured for.
  void note(const std::vector<TensorSpec>& inputs, const std::string& chosen, const std::string& reason);
  // What the export left free, as it is in inputs of these sizes, in the order of its appearance.
  std::vector<SizeReport> free_sizes(const std::vector<TensorSpec>& specs) const;
  // The values of the free sizes, if such inputs are of the file's dtypes and sizes and row-major, so that others of theirs differ in
  // sizes alone; empty otherwise, and where nothing is free.
  Sizes range_sizes(const std::vector<TensorSpec>& specs) const;
  // What the export allows for the free sizes; where it states no end, 0.
  SizeBox bounds(const std::vector<TensorSpec>& specs) const;
  Status check_sizes(const std::vector<int64_t>& symbol_sizes, const std::vector<TensorSpec>& specs) const;
  // Input shapes for which a plan has kernels of another structure than for these: a free size of 1, two free sizes that are
  // equal; where these are of that kind, one that is not. Empty for a model of fixed sizes.
  std::vector<std::vector<TensorSpec>> other_structures(const std::vector<TensorSpec>& specs) const;
  // Whether calls like one with these inputs are decided in segments, because no one graph holds them.
  bool in_segments(const std::vector<TensorRef>& inputs) const;
  // Inputs of the export's sizes, or of `symbol_sizes`, on the device.
  Result<std::vector<TensorRef>> draw(uint64_t seed, const std::vector<int64_t>& symbol_sizes);
  Result<std::vector<std::string>> unknown_inputs(const std::vector<int64_t>& symbol_sizes) const;  // Session's

  // Last: their threads use everything above.
  CallChecker checker;
  std::unique_ptr<DecisionThread> decisions;  // null where nothing is decided beside calls
};

}  // namespace keirin
