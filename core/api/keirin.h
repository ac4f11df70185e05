// SPDX-License-Identifier: Apache-2.0
//
// The public C++ API. Five lines:
//
//   #include <keirin/torch.h>
//   keirin::Model model = keirin::Model::load("model.pt2");
//   keirin::compile(model, {x});                      // optional: decides for these shapes now; eager answers until then
//   std::vector<at::Tensor> out = keirin::call(model, {x});  // without torch headers: model.call(views)
//   std::puts(model.explain().c_str());
//
// This header needs the C++ standard library only. Failures are thrown as keirin::Error, except that what eager itself raised
// is rethrown as it was. A Model may be called from any number of threads at once; compile may run beside calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace keirin {

#define KRN_API __attribute__((visibility("default")))

class KRN_API Error : public std::runtime_error {
 public:
  Error(int code, const std::string& text) : std::runtime_error(text), code_(code) {}
  int code() const { return code_; }  // abi/status.def

 private:
  int code_;
};

// Something that happened to a model besides its answers, for a service's log and metrics.
struct Event {
  enum class Kind {
    kLog,       // a plugin said something, or a warning
    kProgress,  // a decision is being made: `done` of it, from 0 to 1; the text is the stage
    kDecided,   // something was decided for one kind of call, or deciding failed (level 0)
    kChanged,   // what answers changed otherwise: a plan was revoked, a decision forgotten, a kind of call left to eager
  };
  Kind kind = Kind::kLog;
  int level = 2;      // 0 error, 1 warning, 2 note, 3 detail
  std::string model;  // empty: of no one model
  std::string text;   // one line for people
  double done = 0;
};

// How a model is loaded and compiled: options of `keirin run`, with the same values and defaults (docs/options.md; a test
// compares). Model::load throws Error for a value that is not allowed there, and names the nearest one or the range.
struct LoadOptions {
  std::string device = "cpu";    // cpu, cuda, cuda:1, rocm, or the name of a plugin for the device that it drives
  std::string mode = "default";  // default reduce-overhead max-autotune max-performance
  int threads = 0;               // CPU threads, 0: as LibTorch has it
  double budget_seconds = 0;     // tuning beyond the heuristics
  std::string fallback = "allow";
  std::string numerics = "default";
  // When sizes that nothing was decided for are decided. now: when compile() is called. background, for a service: after a call met
  // them, by a thread of the model that gives way to calls; eager answers meanwhile, and always for a model that writes its state or
  // draws random numbers, which only compile() decides. never: what earlier processes decided is used, and nothing is compiled.
  std::string compile = "now";
  std::string plans = "on";      // what plans are for at first: Model::set_plans
  std::string run_in;            // process or worker: one process away, where a crash costs a call's time; empty: $KEIRIN_RUN_IN
  std::string cache_dir;         // empty: $KEIRIN_CACHE or the user's cache folder
  std::string trust = "own";     // of a bundle (keirin build): native: its code may be used whoever made it; own: this user with this cache
  std::vector<std::string> plugin_paths;  // absolute, of libraries or folders that are there
  int max_shapes = 8;            // decisions that the model keeps, those for the shapes decided last; sizes in ranges do not count
  // Sizes that calls are padded in, "x[0]=pow2", and what stands in the padding of an input, "edges=x[0]": docs/serve.md. Model::load
  // throws Error where it is not proved that no answer changes.
  std::vector<std::string> buckets, pads;
  std::vector<std::string> load_libraries;  // that register operators, opened before the model is read; they stay loaded
  // Called with each event by the thread that it happens on, also within calls: it has to be quick, may be called by several threads at
  // once, and may not call the model. What it throws is dropped. Lives as long as the model; a plugin's log is that of the first model
  // of the process that loaded the plugin.
  std::function<void(const Event&)> on_event;
};

// A tensor by address. As an input it is borrowed for the call; as an output `owner` keeps it alive.
struct TensorView {
  void* data = nullptr;
  std::string dtype;             // f32 bf16 i64 bool ...: abi/dtypes.def
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  // in elements; empty: row-major
  std::string device = "cpu";
  std::shared_ptr<void> owner;
};

// One size of an input or output, or the value of an input that is a number.
struct Dimension {
  int64_t size = 0;         // as exported; 0 where the file does not say
  bool free = false;        // whether a call may have another one
  int64_t min = 0, max = 0;  // what the export allows, guards aside; max 0: no bound is stated
  std::string symbol;       // of a free one: sizes with the same symbol are equal; f(s0): computed of s0
};

// An input or output: its name in the model's own arguments or results ("x", "batch.mask", a dict's key, a tuple's position).
struct Port {
  std::string name;
  std::string dtype;  // empty: an output that is not a tensor
  std::vector<Dimension> sizes;
  bool is_number = false;  // of an input: given as an i64 tensor of no axes
  Dimension number = {};   // its value, then
};

struct Signature {
  std::vector<Port> inputs, outputs;  // in the order in which a call takes and returns them
};

// Where a call puts its outputs and its work.
struct Destination {
  // Memory for the outputs, one view each, of the output's dtype and sizes and of any strides; without `data`: new memory. They share
  // none with each other. Where they lie as the plan's own would and begin at a multiple of 64 bytes nothing is copied.
  std::vector<TensorView> outputs;
  // Of the model's device (cudaStream_t, hipStream_t): what the call enqueues goes there, and it returns without waiting. Null: LibTorch's
  // current stream of the thread. On the CPU there is none.
  void* stream = nullptr;
};

class KRN_API Model {
 public:
  // Of a .pt2 file, or of a bundle (docs/bundles.md), whose kinds of calls are decided when this returns.
  static Model load(const std::string& path, const LoadOptions& options = {});
  // The same of a .pt2 file in memory, which is read during the call only, and of an open file or memory file: from its beginning, whatever
  // its position, and it stays the caller's. `name` stands for it in messages and reports.
  static Model load_memory(const void* file, size_t size_bytes, const std::string& name, const LoadOptions& options = {});
  static Model load_descriptor(int descriptor, const std::string& name, const LoadOptions& options = {});

  // Decides for the shapes of `inputs` (flat, in the order of the exported signature): captures, compiles, verifies, races.
  void compile(const std::vector<TensorView>& inputs);
  // Answers with what was chosen for these shapes, else with eager.
  std::vector<TensorView> call(const std::vector<TensorView>& inputs, const Destination& to = {}) const;
  // Inputs by the names of the signature in the order of a call, for call and compile; Error, with the names that there are, where one is
  // unknown or missing.
  std::vector<TensorView> in_order(const std::map<std::string, TensorView>& named) const;
  // Waits until every kind of call that was met is decided (LoadOptions::compile "background" or "never", and after replace_weights; else
  // there is nothing to wait for), at most so many seconds; false if that was too short. Any thread.
  bool wait(double seconds) const;

  // Gives weights other elements, of the same dtypes and sizes: copied, so the memory is the caller's again. A call has either all old ones
  // or all new ones; when this returns, calls that begin have the new ones. No call waits or fails for it: eager answers until a thread of
  // the model has made the plans again, from code in the cache, for the kinds of calls that were decided. Weights that are not named stay,
  // and so does what calls wrote; what a call under way writes into a weight that is replaced is lost. The old ones stay in memory until
  // the last call that began with them has ended. Any thread.
  void replace_weights(const std::map<std::string, TensorView>& values);
  // Names and live memory of parameters, buffers and constants, in the file's order. Valid until they are replaced or the model goes,
  // whichever `owner` outlives.
  std::vector<std::pair<std::string, TensorView>> weights() const;

  // What plans are for, from the next call on: "on": they answer calls. "shadow": eager answers, and after the reply plans answer some of
  // the calls too, on copies and on one thread beside them; what comes out is compared, and a wrong plan is revoked, as a sampled call's
  // is. "off": eager answers, and nothing new is decided beside calls. No plan is lost, no call waits or fails, and each is answered
  // under what it began with. Error for another word. Any thread.
  void set_plans(const std::string& plans);
  std::string plans() const;

  Signature signature() const;      // what a call takes and returns, as the file says
  std::string explain() const;      // what was chosen and why, as text
  std::string report_json() const;  // the same as JSON: an array with one report per shape

  struct Impl;
  const std::shared_ptr<Impl>& impl() const { return impl_; }  // for keirin/torch.h

 private:
  explicit Model(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

}  // namespace keirin
