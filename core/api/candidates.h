// SPDX-License-Identifier: Apache-2.0
//
// From one model at one shape to the plans that may run it: capture, passes, claims, cuts, compilation. It builds; whether a
// plan is right and fast is core/api/decide.cc's question.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/api/session_impl.h"
#include "core/capture/import/importer.h"
#include "core/eager/rows/graph_calls.h"
#include "core/exec/plan.h"
#include "core/host/plugins.h"
#include "core/ir/bytes.h"
#include "core/partition/partition.h"

namespace keirin {

// The graph of one shape before and after the passes, and what its constants are.
struct Prepared {
  Captured captured;                  // empty where SizedCapture made it
  Graph graph;                        // after the passes
  std::vector<TensorRef> constants;   // by index: the session's weights, then what folding added
  int64_t own_constant_bytes = 0;     // of those that folding computed for it and that no other of the session's graphs had
  std::vector<FoldEvaluator::Origin> folded;  // of the constants behind the weights
  std::unique_ptr<GraphCalls> calls;  // runs ops of either graph eagerly
  bool keeps_precision = false;       // products of it are compiled without rounding, because with it they were judged wrong
  std::vector<std::pair<std::string, double>> stage_seconds;
  std::shared_ptr<const RegionBytes> written;  // written_graph; null where the graph has changed since
};
// `graph` as plugins are asked about it, written when somebody first asks. Not for two threads at once.
Result<std::shared_ptr<const RegionBytes>> written_graph(Prepared& prepared);

// Which claimed nodes a plan compiles; the others stay eager. The largest cut is not always the fastest.
enum class Cut { kAll, kNoAnchors, kAnchorsOnly };
const char* cut_name(Cut cut);

// How a plan is made.
struct PlanChoice {
  PluginDevice* device = nullptr;  // the Runtime's
  Cut cut = Cut::kAll;
  uint32_t candidate = 0;          // the plugin's k-th way of compiling, 0 is its best guess
  std::vector<uint32_t> left_out;  // numbers of the cut's regions that stay eager all the same, ascending

  std::string name() const;        // "cpu/all", "cpu/all/1", "cpu/all-r3-r5": in reports and in the ledger
};
// The choice of that name among those that this session's device and plugins allow.
std::optional<PlanChoice> find_choice(Session::Impl& session, const std::string& name);

// A region of a plan, as a graph that can be tried alone.
struct BuiltRegion {
  size_t step = 0;              // of the plan
  uint32_t number = 0;          // of the cut's regions, as PlanChoice::left_out counts
  RegionGraph cut;              // constants and states by index of Prepared::constants
  std::vector<ValueId> inputs;  // of `cut`, in the order that the executable takes them
  Hash hash{};                  // RegionBytes::hash
};

// What a plugin wants of a graph, and why not the rest.
struct ClaimedOps {
  std::vector<OpId> ops;  // in the order in which it named them
  std::map<OpId, std::string> refusals;
};

// What one choice's plans of a model have alike at many sizes, so that another one is made of it while a call waits.
struct SizePattern {
  std::string choice;  // PlanChoice::name
  Sizes sizes;
  ObservedRun seen;    // eager's run of these sizes
  bool shows_views = false;  // whether eager makes a view or a copy is seen in what the program writes or returns
  Hash structure{};    // of the graph that its plan was made of, without its sizes (enter.cc)
  ClaimedOps claimed;
  std::vector<std::shared_ptr<Executable>> executables;  // by region, in the order of the plan
  std::shared_ptr<const Prepared> prepared;              // whose constants the other sizes share
};

struct BuiltPlan {
  std::string name;  // "cpu/all", "cpu/no_anchors"
  std::string plugin;
  PlanChoice choice;
  size_t num_known_wrong = 0;        // regions of the device's, when it was built
  std::vector<BuiltRegion> regions;  // by step
  ClaimedOps claimed;
  std::shared_ptr<Plan> plan;
  int nodes_compiled = 0;
  uint32_t kernels_generated = 0;
  int64_t constant_bytes = 0;  // packed weights and the like that the steps hold
  double seconds = 0;          // claims, compilation or loading
  std::vector<std::string> lost;  // regions that failed to compile and run eagerly, with the reason
  bool from_cache = false;     // every region came from the cache
  bool repaired = false;       // something is left out of it, or compiled otherwise, because it was judged wrong
  std::vector<std::string> refusals;  // "attention: 4 nodes, no kernel": reasons for eager nodes, most frequent first

  std::vector<std::string> hashes() const;  // hex, of the regions
};

// Imports the program at these sizes; `graph` is still the captured one. Without `seen` (core/eager/program/observed.h) the plans made of
// it may be kept in the cache and answer nothing.
Result<Prepared> capture(Session::Impl& session, const std::vector<TensorSpec>& inputs, const ObservedRun* seen,
                         SeenAt seen_at = SeenAt::kTheseSizes);
// A captured graph with these weights, before the passes.
Prepared with_weights(Captured captured, const WeightTable& weights, Device device);
// Runs the passes; `at_once`: of a graph like one that they were checked on. `eager_outputs` are what eager returned for these sizes: the
// outputs of the graph get their strides. `folded` is of the weights that the constants begin with.
Status optimise(Session::Impl& session, Prepared& prepared, const std::vector<TensorSpec>& eager_outputs, FoldedConstants& folded,
                bool at_once = false);

// A region without the choice's k-th way of compiling gets its best guess. What a plugin answers for one region costs that region,
// which runs eagerly. `unsupported` if the device claims nothing that pays, or has no k-th way for any region.
// `like`: of a graph with this structure, whose executables are resized and nothing is compiled: `unsupported` where one cannot be.
Result<BuiltPlan> build_plan(Session::Impl& session, Prepared& prepared, const PlanChoice& choice, const SizePattern* like = nullptr);

// Code for one graph alone, as a region of a plan would have it: `inputs` in the executable's order. With the plugin's best guess
// where it has no k-th.
struct BuiltPart {
  std::shared_ptr<Executable> executable;
  std::vector<ValueId> inputs;
};
Result<BuiltPart> build_part(Session::Impl& session, const Prepared& prepared, PluginDevice& device, const Graph& graph,
                             uint32_t candidate);

// What is remembered of code that was judged wrong: the region, or one op as a region of its own, under the session's numerics.
Hash judged_hash(const Graph& region, const Session::Impl& session);
Hash judged_hash(const Graph& graph, OpId op, const Session::Impl& session);
// What is remembered of a region that no plan is to have, nor its halves.
Hash left_out_hash(const Graph& region, const Session::Impl& session);

// Whether the numerics let a plugin round the op's f32 operands, and nothing forbids it for this op (AttrKey::k_ieee).
bool may_round(const Session::Impl& session, const Graph& graph, OpId op);

// The plans worth racing: each cut by each device that may compile for this session, and another way of compiling the largest.
// `take` gets each with its name, the failed ones too.
void build_plans(Session::Impl& session, Prepared& prepared, const std::function<void(Result<BuiltPlan>, const std::string&)>& take);
// Compiles for input shapes whose kernels differ in structure from those of `specs`, so that a later shape finds its code made.
// Returns for how many kernels code was generated.
int compile_other_structures(Session::Impl& session, const std::vector<TensorSpec>& specs);

// Why nothing is compiled for this session's device: no plugin was found, usable or asked. Empty where one is.
std::string why_no_plugin(Session::Impl& session);

// The folder of options.dump_dir, made if need be; empty if there is none.
std::string dump_folder(const Options& options);

}  // namespace keirin
