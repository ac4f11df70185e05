// SPDX-License-Identifier: Apache-2.0
//
// One graph through the real thing: passes, claims of the real plugins, partition, compilation and the executor, judged against
// eager by the rule of core/tune/verify.h with LibTorch in fp64 as the referee. Two calls of one plan: the second with other
// values in another memory layout, on the state that the first one left, and what the first one returned must stay as it was.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/services.h"
#include "core/eager/rows/graph_calls.h"
#include "core/exec/plan.h"
#include "core/host/plugins.h"
#include "core/ir/graph.h"

namespace keirin::graphs {

// Who computes the ops. kMixed: each op is given to a plugin that claims it, or to eager, by chance.
enum class Cut { kCpu, kReference, kCuda, kMixed };
const char* cut_name(Cut cut);

struct Setting {
  Cut cut = Cut::kCpu;
  bool finite = true;  // else inputs hold NaN, infinities and signed zeros, too
  uint64_t seed = 0;   // of the values, of a mixed cut, and of what else varies: a pass that is off, channels-last, saved artifacts
};

// A graph with what it needs to run: opaque ops and constants.
struct Program {
  const Graph& graph;
  std::shared_ptr<const CallTable> calls;  // null: no opaque ops
  std::vector<TensorRef> constants;
};

struct Verdict {
  bool right = true;
  std::string reason;
  int compiled = 0;    // ops in regions
  int kernels = 0, generated = 0;  // of those regions, and for how many of the kernels code was made
};

class Plugins {
 public:
  // A plugin's folder and the cut that it alone computes. All of them drive the same device, on which eager runs too.
  struct Source {
    Cut cut;
    std::string folder;
  };
  static Result<std::unique_ptr<Plugins>> open(const std::vector<Source>& sources, const std::string& worker, TensorServices& services,
                                               RunIn run_in = RunIn::kProcess);
  // With drawn values.
  Verdict try_graph(const Graph& graph, const Setting& setting);
  // With these inputs, one set per call.
  Verdict try_program(Program program, const std::vector<std::vector<TensorRef>>& calls, const Setting& setting);

 private:
  Status draw_and_run(const Graph& graph, const Setting& setting, Verdict& verdict);
  Status run(Program program, const std::vector<std::vector<TensorRef>>& calls, const Setting& setting, Verdict& verdict);
  Result<std::vector<uint32_t>> assign(const Graph& graph, const Setting& setting);
  Result<std::unique_ptr<Plan>> build(const Graph& graph, const Setting& setting, const Program& program, Verdict& verdict);
  Result<std::vector<TensorRef>> values(const Graph& graph, const Setting& setting, uint32_t call);
  TensorServices* services_ = nullptr;
  std::vector<std::unique_ptr<PluginHost>> hosts_;
  std::vector<PluginDevice*> devices_;
  std::vector<Cut> cuts_;  // by device
  Device where_;
};

}  // namespace keirin::graphs
