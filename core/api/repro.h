// SPDX-License-Identifier: Apache-2.0
//
// A wrong answer as a folder: the captured graph, the inputs and constants it was wrong on, and what compiled it. And the way back:
// run it again, make it small, say which pass or plugin is to blame. It judges by the rule of core/tune/verify.h, as a session does.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/api/session.h"
#include "core/ir/graph.h"

namespace keirin {

struct ReproCase {
  std::string model, plan, reason;          // "cpu/all/1"; what was wrong then
  std::vector<std::string> disabled_passes;
  Numerics numerics = Numerics::kDefault;
  double error_budget = 0;
  Device device;
  Graph graph;                              // as captured
  std::vector<TensorRef> inputs;            // by position
  std::vector<TensorRef> constants;         // by index; null where the graph has none of that index
};

// graph.ir, inputs.safetensors, constants.safetensors, case.json in a new folder below `parent`; its path.
Result<std::string> write_repro(const std::string& parent, const ReproCase& c, TensorServices& services);
// `unsupported` for a graph with operators outside the table: what they are called with is not in the text.
Result<ReproCase> read_repro(const std::string& folder, TensorServices& services);

struct ReproFinding {
  std::string reason;        // why it is wrong here; empty: it is right here
  Graph smallest;            // the smallest graph found that is wrong in the same way, and why
  std::string smallest_reason;
  std::string blame;         // a sentence
};

// `options` name device and plugin folders; the rest is the case's. Nothing is read from or kept in the cache.
Result<ReproFinding> reproduce(Runtime& runtime, const ReproCase& c, const Options& options, int most_tries = 400);

// The pass that makes the case fail: the last of the shortest row of passes with which it fails; empty if it fails with none of them.
std::string first_bad_pass(const std::vector<std::string>& passes,
                           const std::function<bool(const std::vector<std::string>& disabled)>& fails);

}  // namespace keirin
