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

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
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

// How a model is loaded and compiled: options of `keirin run`, with the same values and defaults (docs/options.md; a test
// compares). Model::load throws Error for a value that is not allowed there, and names the nearest one or the range.
struct LoadOptions {
  std::string device = "cpu";    // cpu, cuda, cuda:1
  std::string mode = "default";  // default reduce-overhead max-autotune max-performance
  int threads = 0;               // CPU threads, 0: as LibTorch has it
  double budget_seconds = 0;     // tuning beyond the heuristics
  std::string fallback = "allow";
  std::string numerics = "default";
  // When sizes that nothing was decided for are decided. now: when compile() is called. background, for a service: after a call met
  // them, by a thread of the model that gives way to calls; eager answers meanwhile, and always for a model that writes its state or
  // draws random numbers, which only compile() decides. never: what earlier processes decided is used, and nothing is compiled.
  std::string compile = "now";
  std::string run_in;            // process or worker: one process away, where a crash costs a call's time (CPU); empty: $KEIRIN_RUN_IN
  std::string cache_dir;         // empty: $KEIRIN_CACHE or the user's cache folder
  std::vector<std::string> plugin_paths;  // absolute, of libraries or folders that are there
  int max_shapes = 8;            // decisions that the model keeps, those for the shapes decided last
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

// One size of an input or output.
struct Dimension {
  int64_t size = 0;         // as exported; 0 where the file does not say
  bool free = false;        // whether a call may have another one
  int64_t min = 0, max = 0;  // what the export allows; max 0: no bound is stated
  std::string symbol;       // of a free one: sizes with the same symbol are equal; f(s0): computed of s0
};

// An input or output: its name in the model's own arguments or results ("x", "batch.mask", a dict's key, a tuple's position).
struct Port {
  std::string name;
  std::string dtype;  // empty: an output that is not a tensor
  std::vector<Dimension> sizes;
};

struct Signature {
  std::vector<Port> inputs, outputs;  // in the order in which a call takes and returns them
};

class KRN_API Model {
 public:
  static Model load(const std::string& path, const LoadOptions& options = {});

  // Decides for the shapes of `inputs` (flat, in the order of the exported signature): captures, compiles, verifies, races.
  void compile(const std::vector<TensorView>& inputs);
  // Answers with what was chosen for these shapes, else with eager.
  std::vector<TensorView> call(const std::vector<TensorView>& inputs) const;
  // Waits until every kind of call that was met is decided (LoadOptions::compile "background" or "never"; else there is nothing to wait
  // for), at most so many seconds; false if that was too short. Any thread.
  bool wait(double seconds) const;

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
