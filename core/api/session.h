// SPDX-License-Identifier: Apache-2.0
//
// The host's front room: a Runtime (plugins, LibTorch services, cache: one per process) and Sessions (one per model). A session
// answers every call from the start with eager and, once `compile` has decided for a shape, with the faster right candidate.
// The public C++ API (keirin.h) and the `keirin` command are thin over this. Torch-free.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/base/services.h"
#include "core/base/status.h"
#include "core/exec/report.h"
#include "core/passes/pass.h"

namespace keirin {

class PluginHost;
class Cache;

enum class Fallback { kAllow, kWarn, kForbid };

struct Options {
  std::string device = "cpu";                 // cpu, cuda, cuda:1
  std::string mode = "default";               // default reduce-overhead max-autotune max-performance
  int threads = 0;                            // 0: as LibTorch has it
  double budget_seconds = 0;                  // tuning beyond the heuristics; 0: none
  Fallback fallback = Fallback::kAllow;
  Numerics numerics = Numerics::kDefault;     // mode max-performance: fast, unless another is asked for
  double error_budget = 1e-2;                 // of numerics fast: what a plan's error may be, relative to the largest element
  double memory_limit = 0.25;                 // a candidate may use so much more than an eager-only process
  bool verify = true;
  bool use_cache = true;
  std::string compile_in;                     // child or process; empty: $KEIRIN_COMPILE_IN, else child
  std::string run_in;                         // process or worker; empty: $KEIRIN_RUN_IN, else process. In a worker a plugin's crash
                                              // costs a call's time; arguments are copied. CPU only: GPUs run in this process
  double run_deadline_seconds = 60;           // of one region's run; what takes longer is quarantined and gets no more calls
  double compile_deadline_seconds = 120;      // of one claim or compile in the child; what takes longer is quarantined
  bool background = false;                    // compiling gives way to whatever else wants the processor: beside calls in service
  uint64_t sample_rate = 10000;               // after the first 3 calls of a shape, 1 in so many is checked; 0: none ever
  double race_seconds = 30;                   // limit of one race; a call too long for it still gets its first look
  bool measure_again = false;                 // race even where the ledger knows the answer: what `bench` does
  std::string force;                          // "", "eager", "compiled": for tests; shown in every report
  std::string cache_dir;                      // empty: $KEIRIN_CACHE or the user's cache folder
  std::string dump_dir;                       // empty: $KEIRIN_DUMP; numbered stages are written there
  std::string repro_dir;                      // empty: $KEIRIN_REPRO, else nowhere; wrong answers are written there, for `keirin repro`
  std::vector<std::string> plugins;           // names of the plugins that may compile; empty: all but oracles
  std::vector<std::string> plugin_paths;      // folders or libraries, before KEIRIN_PLUGIN_PATH
  std::vector<std::string> load_libraries;    // register operators: dlopen'ed before the model is read
  std::vector<std::string> disabled_passes;
  std::function<void(const std::string& stage, double done, double seconds_left)> progress;  // may be empty
};

class Runtime {
 public:
  // Opens LibTorch's services, the cache and every usable plugin. A plugin that fails is reported, never an error.
  static Result<std::unique_ptr<Runtime>> open(const Options& options);
  ~Runtime();
  TensorServices& tensors() { return *tensors_; }
  PluginHost& plugins() { return *plugins_; }
  Cache* cache() { return cache_.get(); }  // null where disabled
  bool runs_in_worker() const { return runs_in_worker_; }

 private:
  Runtime();
  TensorServices* tensors_ = nullptr;   // the process's
  std::unique_ptr<Cache> cache_;        // before plugins_: the quarantine writes to it
  std::unique_ptr<PluginHost> plugins_;
  bool runs_in_worker_ = false;
};

class Session {
 public:
  // Reads a .pt2 file. Errors name record and path; nothing is half loaded. The Runtime must outlive the session.
  static Result<std::unique_ptr<Session>> open(Runtime& runtime, const std::string& path, const Options& options);
  ~Session();

  // Decides for the shapes of `inputs` (flat, by position): captures, compiles, verifies, races. Calls go on meanwhile.
  Result<ModelReport> compile(const std::vector<TensorRef>& inputs);
  // Answers with what was chosen for calls of this kind (core/api/call_guard.h: dtypes, sizes, strides, what shares memory, LibTorch's
  // numeric settings), else with eager. Thread-safe.
  Result<std::vector<TensorRef>> call(const std::vector<TensorRef>& inputs);
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
  const std::string& name() const;
  // Names and live tensors of parameters, buffers and constants: what calls write is seen in them. Any thread.
  std::vector<std::pair<std::string, TensorRef>> weights() const;
  // The reports of all shapes decided so far, oldest first.
  std::vector<ModelReport> reports() const;

  struct Impl;  // core/api/session_impl.h

 private:
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace keirin
