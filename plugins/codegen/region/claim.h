// SPDX-License-Identifier: Apache-2.0
//
// Which nodes of a graph the code generator and a backend together can compile, and why not the others. A pure function of the
// graph and the backend's answers; it compiles nothing.
#pragma once

#include <string>
#include <vector>

#include "abi/graph.h"
#include "plugins/codegen/backend.h"

namespace keirin::codegen {

struct NodeClaim {
  std::vector<uint32_t> nodes;
  uint32_t anchors = 0;
  double cost_ns = 0;  // bytes moved once, by the target's bandwidth, and flops of anchors: a prior only
};
struct NodeRefusal {
  uint32_t node;
  std::string why;
};
struct ClaimResult {
  NodeClaim claimed;
  std::vector<NodeRefusal> refused;
};

ClaimResult claim(const krn_graph& graph, const Backend& backend);

}  // namespace keirin::codegen
