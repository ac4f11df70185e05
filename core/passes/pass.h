// SPDX-License-Identifier: Apache-2.0
//
// What every pass sees, and the runner that does what authors forget: disable by name, stop after a pass, numbered dumps,
// timing, verification. A pass never asks which vendor it runs for. One context serves one run on one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/ir/graph.h"
#include "core/passes/evaluator.h"

namespace keirin {

enum class Numerics : uint8_t { kDefault = 0, kStrict = 1, kFast = 2 };  // numbers of KRN_NUMERICS_*

struct PassTime {
  std::string_view name;
  int64_t ns = 0;         // the pass alone, without verification and dump
  size_t ops_before = 0;
  size_t ops_after = 0;
};

struct PassContext {
  Numerics numerics = Numerics::kDefault;
  bool channels_last = false;          // convolution graphs are laid out channels-last
  bool relays_weights = false;         // their weights too where these are not constants: for libraries that take all in one order
  int short_run_bytes = 0;             // group norms do not read runs shorter than this out of each pixel; 0: they may
  int64_t extra_weight_bytes = 0;      // second copies of weights that merge_siblings may make
  Evaluator* evaluator = nullptr;      // null: nothing is folded
  std::vector<std::string> disabled;   // names of passes to leave out
  std::string stop_after;              // the last pass to run; empty: all
  std::string dump_dir;                // empty, or an existing folder for NN-name.ir
  int first_dump_number = 1;           // 00 is the captured graph
  bool check_each = true;              // the graph after each pass; else only what the last one leaves, and a failure leaves no graph
  bool run_twice = false;              // tests: a pass that changes its own result is an error
  std::vector<PassTime> times;         // appended to, in order
  std::vector<std::string> notes;      // what a pass decided not to do and why, for the report
};

struct PassRow {
  std::string_view name;
  bool on;
  std::string_view text;
  Status (*run)(Graph&, PassContext&);
};

// The rows of passes.def in order.
const std::vector<PassRow>& all_passes();
const PassRow* find_pass(std::string_view name);

// Runs the rows that are on. An unknown name in `disabled` or `stop_after` is invalid_input; a pass that leaves a malformed
// graph is internal and named, and the graph is as before that pass.
Status run_passes(Graph& graph, PassContext& context);

#define KRN_PASS(name, on, text) Status name(Graph& graph, PassContext& context);
namespace passes {
#include "core/passes/passes.def"
}
#undef KRN_PASS

}  // namespace keirin
