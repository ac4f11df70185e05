// SPDX-License-Identifier: Apache-2.0
//
// The steps of one model on one device for one shape class, and their executor. A step runs a region's executable or one
// operator eagerly. Between steps there are no allocations and no lookups: values that cross region borders lie in one arena
// per call in flight, argument arrays are built once and only the addresses of inputs, outputs and eager results are patched.
// LibTorch tensors are made for the model's outputs and by eager steps only.
//
// It decides nothing: partition cut the graph, core/api compiled the regions. Its invariant: a run that fails leaves the inputs and
// the model's state as they were, so that eager can answer the same call; if a region had begun to update something in place, it
// fails with `half_done` and nobody may repeat it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/base/services.h"
#include "core/base/status.h"
#include "core/host/plugins.h"
#include "core/ir/graph.h"

namespace keirin {

// Runs one operator eagerly: operands in the op's order (null for an absent one), results resized by the callee.
using EagerCall = std::function<Status(std::span<const TensorRef> operands, std::vector<TensorRef>& results)>;

// One step as the plan is given it; values are those of the graph that was cut.
struct PlanStep {
  std::string name;
  std::shared_ptr<Executable> executable;  // a region; else `eager`
  EagerCall eager;
  std::vector<ValueId> operands;  // region: in the order of its inputs
  std::vector<ValueId> results;   // region: in the order of its outputs
  std::vector<ValueId> targets;   // region: parallel to results; the input or state that the output is written into, or kNone.
                                  // Empty: none. What has a target is read by nobody else.
  bool may_alias = true;          // eager: a result may be a view of an operand
  bool keeps_results = false;     // eager: a result may be memory that the step has for all calls
  int num_ops = 1;
  int launches = 0;               // region: its kernels and library calls
  std::string reason;             // eager: why, as a code of docs/report.md
  std::string note;               // region: what it came to; eager: why, in words
  std::string origin;             // eager: Op::origin
};

class Plan {
 public:
  // `weights` holds the tensor of every kConstant and kState value by its index. Keeps what it needs of `graph`.
  static Result<std::unique_ptr<Plan>> make(const Graph& graph, std::vector<PlanStep> steps, const std::vector<TensorRef>& weights,
                                            TensorServices& services, Device device);
  ~Plan();

  // Inputs by user position, of the sizes the plan was made for. Any thread; calls in flight do not share a context. No two outputs
  // share memory unless both are inputs themselves: where eager's do, the caller makes views of them.
  [[gnu::hot]] Result<std::vector<TensorRef>> run(const std::vector<TensorRef>& inputs);
  // The same into memory of the caller's, which shares none with inputs, weights or itself: given[i], if it is not null, becomes output i
  // where it lies as that would and begins at a multiple of kOutputAlignment. Any other output is made as ever, for the caller to copy.
  static constexpr uintptr_t kOutputAlignment = 64;  // as what is allocated
  Result<std::vector<TensorRef>> run_into(const std::vector<TensorRef>& inputs, const std::vector<TensorRef>& given);
  // The same, with the microseconds of each step (device work is waited for after each); with `count`, thousands of what counts there.
  [[gnu::hot]] Result<std::vector<TensorRef>> run_timed(const std::vector<TensorRef>& inputs, std::vector<double>& step_us,
                                                        const uint64_t* count = nullptr);

  const std::vector<PlanStep>& steps() const { return steps_; }
  int64_t arena_bytes() const { return arena_bytes_; }  // of one call in flight, workspaces included
  int64_t held_bytes() const { return lent_ ? 0 : arena_bytes_; }  // of it, what an idle context keeps
  // From now on each call asks for its arena and gives it back: for plans of which many stand beside each other. Where it is on a GPU,
  // LibTorch's allocator gives it to who comes next on the stream; those of processors lend each other large ones anyhow. No call may be
  // in flight.
  void lend_arena();
  // Frees the arenas of idle contexts, and idle ones that plans lend each other.
  void trim();

 private:
  struct Context;
  struct Slot {
    enum Kind : uint8_t { kUnused, kInput, kFixed, kArena, kFresh, kEager } kind = kUnused;
    uint32_t input = 0;     // kInput
    TensorRef fixed;        // kFixed: weight or state
    int64_t offset = 0;     // kArena
    bool region_reads = false;
    bool kept = false;      // kEager: it may be memory that a step has for all calls
  };
  // What a call looks at before its first kernel. Kernels push everything else out of the caches, and each line fetched again
  // costs a call 0.15 us or more: hence these records beside each other, and not the slots and types.
  struct Extent {
    DType dtype;
    int64_t rank;
    const int64_t* sizes;
    const int64_t* strides;
  };
  struct Expected {
    ValueId value;
    uint32_t input;     // of the caller's inputs; unused for an output
    bool region_reads;  // its strides are binding
    Extent extent;
  };

  // What a call runs besides the kernels is `hot`: it is laid side by side, for each page of code that the kernels pushed
  // out costs a call about 1 us, each line 0.15 us. What it seldom runs is `cold` and lies elsewhere.
  Plan(TensorServices& services, Device device);
  void classify(const Graph& graph, const std::vector<TensorRef>& weights);
  void place();
  Result<std::unique_ptr<Context>> make_context();
  [[gnu::hot]] Result<std::unique_ptr<Context>> take_context();
  [[gnu::cold]] Result<std::unique_ptr<Context>> another_context();
  [[gnu::hot]] void give_back(std::unique_ptr<Context> context);
  [[gnu::cold]] void keep(std::unique_ptr<Context> context);
  static Extent extent_of(const Type& type);
  [[gnu::hot]] static bool same_sizes(const Tensor& tensor, const Extent& extent);
  [[gnu::hot]] static bool same_strides(const Tensor& tensor, const Extent& extent);
  Status bring_fixed(const Graph& graph);
  void expect(const std::vector<ValueId>& inputs);
  [[gnu::hot]] Status bind_inputs(Context& context, const std::vector<TensorRef>& inputs);
  [[gnu::cold]] Status too_few(size_t inputs) const;
  [[gnu::cold]] Status unexpected(uint32_t input) const;
  [[gnu::hot]] Status bind_outputs(Context& context);
  Status bind_arena(Context& context);
  Status borrow_arena(Context& context);
  void return_arena(Context& context);
  [[gnu::cold]] Status allocate_output(Context& context, size_t index);
  // Positions in fresh_ of what was bound so.
  [[gnu::cold]] std::vector<size_t> bind_given(Context& context, const std::vector<TensorRef>& given);
  [[gnu::hot]] Status run_region(Context& context, size_t step);
  Status run_eager(Context& context, size_t step);
  Status bring(TensorRef& tensor);
  [[gnu::cold]] Status conform(Context& context, ValueId value);
  [[gnu::hot]] Status run_steps(Context& context, std::vector<double>* step_us, const uint64_t* count);
  Status collect(Context& context, const std::vector<TensorRef>& inputs, std::vector<TensorRef>& outputs);
  [[gnu::cold]] Status failed(size_t step, bool after, Status status) const;
  [[gnu::hot]] Result<std::vector<TensorRef>> execute(const std::vector<TensorRef>& inputs, std::vector<double>* step_us,
                                                      const uint64_t* count, const std::vector<TensorRef>* given = nullptr);

  // First what every call reads, on as few cache lines as may be.
  TensorServices& services_;
  Device device_;
  std::atomic<Context*> spare_{nullptr};  // of the last call that ended, without the lock's code
  std::vector<PlanStep> steps_;
  std::vector<Expected> expected_;        // the inputs
  std::vector<Expected> fresh_;           // outputs that every call allocates
  std::vector<Output> outputs_;
  std::vector<ValueId> eager_values_;     // whose tensor an eager step makes anew in every call
  std::vector<ValueId> arena_values_;
  int64_t workspace_offset_ = 0;
  bool only_regions_ = false;             // no step is eager
  bool lent_ = false;                     // the arena is one of Arenas, or of a GPU's allocator, while a call lasts
  bool only_fresh_ = true;                // every output is one of fresh_: nothing is left to do after the last step

  std::vector<int64_t> dims_;             // what the extents of expected_ and fresh_ point into
  std::vector<Type> types_;               // by value; krn_tensors point into them
  std::vector<Slot> slots_;               // by value
  std::vector<TensorRef> fixed_;          // the weights and state among them
  std::vector<std::vector<ValueId>> released_;  // by step: eager results that nobody reads after it
  std::vector<uint8_t> in_place_;         // by value: a region writes it, it is the target of an update
  int64_t arena_bytes_ = 0;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Context>> idle_;
};

}  // namespace keirin
