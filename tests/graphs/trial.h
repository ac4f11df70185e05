// SPDX-License-Identifier: Apache-2.0
//
// One graph through the real thing: passes, claims of the real plugins, partition, compilation and the executor, judged against
// eager by the rule of core/tune/verify.h with LibTorch in fp64 as the referee.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/services.h"
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
  uint64_t seed = 0;   // of the values and of a mixed cut
};

struct Verdict {
  bool right = true;
  std::string reason;
  int compiled = 0;    // ops in regions
};

class Plugins {
 public:
  // A plugin's folder and the cut that it alone computes. All of them drive the same device, on which eager runs too.
  struct Source {
    Cut cut;
    std::string folder;
  };
  static Result<std::unique_ptr<Plugins>> open(const std::vector<Source>& sources, const std::string& worker, TensorServices& services);
  Verdict try_graph(const Graph& graph, const Setting& setting);

 private:
  Status run(const Graph& graph, const Setting& setting, Verdict& verdict);
  Result<std::unique_ptr<Plan>> build(const Graph& graph, const Setting& setting, const std::vector<TensorRef>& constants, int& compiled);
  Result<std::vector<uint32_t>> assign(const Graph& graph, const Setting& setting);
  TensorServices* services_ = nullptr;
  std::vector<std::unique_ptr<PluginHost>> hosts_;
  std::vector<PluginDevice*> devices_;
  std::vector<Cut> cuts_;  // by device
  Device where_;
};

}  // namespace keirin::graphs
