// SPDX-License-Identifier: Apache-2.0
//
// The host's front room: a Runtime (plugins, LibTorch services, cache: one per process) and Sessions (one per model). A session
// answers every call from the start with eager and, once `compile` has decided for a shape, with the faster right candidate.
// The public C++ API (keirin.h) and the `keirin` command are thin over this. Torch-free.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/api/keirin.h"
#include "core/api/options.h"
#include "core/base/services.h"
#include "core/base/status.h"
#include "core/base/turn.h"
#include "core/exec/report.h"

namespace keirin {

class PluginHost;
class Cache;
class Quarantine;
struct OpenedBundle;
namespace pt2 {
struct Pt2File;
}

class Runtime {
 public:
  // Opens LibTorch's services, the cache and every usable plugin. A plugin that fails is reported, never an error; an
  // option that its row does not allow is one.
  static Result<std::unique_ptr<Runtime>> open(const Options& options);
  ~Runtime();
  TensorServices& tensors() { return *tensors_; }
  PluginHost& plugins() { return *plugins_; }
  Cache* cache() { return cache_.get(); }  // null where disabled
  Quarantine& quarantine() { return *quarantine_; }
  // Why the cache cannot be used or written, once; empty: it can, or it was asked before.
  std::string take_cache_trouble();
  // Held while something is decided beside calls: two races would measure each other.
  Turn& decision_turn() { return decision_turn_; }

 private:
  Runtime();
  TensorServices* tensors_ = nullptr;   // the process's
  Turn decision_turn_;
  std::mutex trouble_mutex_;
  std::string cache_trouble_;           // before cache_, which tells it
  std::unique_ptr<Cache> cache_;        // before plugins_: the quarantine writes to it
  std::shared_ptr<Quarantine> quarantine_;
  std::unique_ptr<PluginHost> plugins_;
};

class Session {
 public:
  // Reads a .pt2 file. Errors name the option, or record and path; nothing is half loaded. The Runtime must outlive the session.
  static Result<std::unique_ptr<Session>> open(Runtime& runtime, const std::string& path, const Options& options);
  // The same of a file in memory, `name` in messages and reports, whose user inputs `weights` are the caller's own tensors, on the
  // device of `options`: held, not copied, and no inputs of a call. Who writes them opens another session, since plans may have
  // packed them.
  struct HeldWeight {
    size_t input = 0;         // flat position among the file's user inputs
    std::string name;
    TensorRef tensor;
    uint32_t storage = 0;     // equal numbers share one storage
    int64_t byte_offset = 0;  // of the first element in it
  };
  static Result<std::unique_ptr<Session>> open(Runtime& runtime, std::span<const std::byte> file, const std::string& name,
                                               const std::vector<HeldWeight>& weights, const Options& options);
  // The same of an open file (core/capture/pt2/bytes.h), with the weights that it holds.
  static Result<std::unique_ptr<Session>> open(Runtime& runtime, int descriptor, const std::string& name, const Options& options);
  // The same of a program that was read or recorded (core/capture).
  static Result<std::unique_ptr<Session>> open(Runtime& runtime, pt2::Pt2File&& file, const std::string& name,
                                               const std::vector<HeldWeight>& weights, const Options& options);
  // Another session of the same model and options, of which these weights have other elements: copied, of the same dtype and sizes; the
  // other weights are shared with this session, and so is what calls write in them. Eager answers its calls; what this one decided for is
  // decided again by a thread beside the calls (`settle` waits), where its inputs could be kept. Code comes from the cache.
  Result<std::unique_ptr<Session>> with_weights(const std::vector<std::pair<std::string, TensorRef>>& values) const;
  ~Session();

  // Decides for the shapes of `inputs` (flat, by position): captures, compiles, verifies, races. Calls go on meanwhile. With the option
  // `compile` never it takes over what an earlier process decided, if there is such a decision, and else says that eager answers.
  Result<ModelReport> compile(const std::vector<TensorRef>& inputs);
  // Takes over what was decided for such calls by an earlier process, or for the bundle that the session was opened from. Nothing is
  // compiled or measured; where nothing was decided, the error says so and calls are answered as before.
  Result<ModelReport> take_over(const std::vector<TensorRef>& inputs);
  // The bundle that the session was opened from; null: a file that is none. Its kinds are decided already where `why_not` is empty.
  const OpenedBundle* bundle() const;
  // Answers with what was chosen for calls of this kind (core/api/call_guard.h: dtypes, sizes, strides, what shares memory, LibTorch's
  // numeric settings), else with eager. Where the option `compile` is background or never, a kind of call that was not met before is
  // decided about afterwards, by a thread of the session. Thread-safe.
  Result<std::vector<TensorRef>> call(const std::vector<TensorRef>& inputs);
  // The same into memory of the caller's: given[i], of output i's dtype and sizes and of any strides, holds its elements afterwards and is
  // what is returned; null: new memory. Written in place where a plan can, else copied. invalid_input where two of them share memory,
  // which is said before anything ran, or where one does not fit its output, which may be said after.
  Result<std::vector<TensorRef>> call_into(const std::vector<TensorRef>& inputs, const std::vector<TensorRef>& given);
  // What a call with these inputs does besides answering, found by one eager run that leaves no mark. Not beside calls of a model
  // that writes.
  struct Effects {
    std::vector<std::string> written_weights;
    bool draws_random = false;
    bool in_segments = false;             // sizes or branches depend on data
    std::vector<size_t> written_inputs;   // flat positions, ascending
  };
  Result<Effects> effects(const std::vector<TensorRef>& inputs) const;
  // Why nothing is decided about this model beside calls of it, "a call may write \"steps\"": deciding would undo what they write or draw.
  // Told without a run; empty where nothing stands against it.
  std::string why_not_beside_calls() const;
  // A plan is believed where every result varies: a constant one proves nothing of the plan. From the `from`-th on they may be constant, as
  // what a training step keeps of a mask is, or the gradient of what nothing depends on. Before anything is decided.
  void let_results_be_constant(size_t from);
  // Inputs hang together, as what a backward is given of its forward does: what is compiled is also tried with inputs near the caller's,
  // and not with drawn ones. Before anything is decided.
  void let_inputs_belong_together();
  // Calls bring the same memory again and let go of results before the next call, as training steps do: recorded launches read and write
  // there and copy nothing. A result's memory is then written again once nobody holds it, which is not where another stream still reads
  // what was let go of (record_stream). Before anything is decided.
  void keep_memory_in_place();
  // How calls were answered so far, and what answers them now. Any thread.
  struct Activity {
    uint64_t by_plan = 0;          // a plan, or a replay
    uint64_t eager_chosen = 0;     // eager was decided for
    uint64_t eager_undecided = 0;  // nothing was decided for such calls
    uint64_t eager_instead = 0;    // of a plan that failed, or whose breaker is open
    uint64_t eager_off = 0;        // plans were off
    uint64_t eager_shadow = 0;     // of a plan that was in shadow
    // Of these, calls that the plan answered too, after the reply: as eager did, otherwise, not at all; and those that should have been
    // compared but had to wait behind too many, or write or draw.
    uint64_t shadow_right = 0, shadow_wrong = 0, shadow_failed = 0, shadow_dropped = 0, shadow_not_compared = 0;
    size_t kinds = 0, plans = 0;   // of calls that something was decided for; those of them that a plan answers
    size_t breakers_open = 0;
  };
  Activity activity() const;
  // Option `plans`, between two calls: Model::set_plans. Sessions that `with_weights` made of one another have one in common. Any thread.
  void set_plans(Plans plans);
  Plans plans() const;
  // Whether something was decided for such calls, also that eager answers. Thread-safe.
  bool is_decided(const std::vector<TensorRef>& inputs) const;
  // Of a call that something else than this session has answered, as `call` does after eager has: with `compile` background such calls are
  // decided about, or entered where their sizes lie in a range. Returns at once. Any thread.
  void meet(const std::vector<TensorRef>& inputs);
  // Nothing more is decided beside calls: tells what is being decided to end, and waits until it has. Any thread.
  void end_deciding();
  // Waits until each kind of call that was met was decided about, or tried once where others had the machine; false if that takes
  // longer than `most`. Any thread.
  bool settle(std::chrono::nanoseconds most) const;
  // Always eager, the file's own operators.
  Result<std::vector<TensorRef>> call_eager(const std::vector<TensorRef>& inputs);
  // Inputs of the sizes that the file was exported with, values from its hints and from the facts of the graph.
  Result<std::vector<TensorRef>> example_inputs(uint64_t seed);
  // The same with other sizes: symbol_sizes[k] for the k-th free size of the inputs, in the order of their appearance.
  Result<std::vector<TensorRef>> example_inputs(uint64_t seed, const std::vector<int64_t>& symbol_sizes);
  // The inputs of which those hold integers that neither the file nor the graph says the meaning of (pivots, lengths),
  // by name and reader; empty if there are none. Drawn ones may be illegal: an operator may raise, or read and write
  // memory that is not its own.
  Result<std::vector<std::string>> unknown_inputs(const std::vector<int64_t>& symbol_sizes) const;
  // Of the outputs that are tensors, as the file says: position and dtype.
  std::vector<std::pair<size_t, DType>> output_dtypes() const;
  // What a call takes and returns, as the file says.
  Signature signature() const;
  const std::string& name() const;
  Device device() const;
  // Names and live tensors of parameters, buffers and constants: what calls write is seen in them. Any thread.
  std::vector<std::pair<std::string, TensorRef>> weights() const;
  // The reports of all shapes decided so far, oldest first.
  std::vector<ModelReport> reports() const;
  // The same without waiting for the checks of sampled calls. Any thread.
  std::vector<ModelReport> reports_so_far() const;

  struct Impl;  // core/api/session_impl.h

 private:
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace keirin
