// SPDX-License-Identifier: Apache-2.0
//
// Hash-consing of DAG nodes: equal nodes get equal ids, so that a value read twice is computed once.
#include "plugins/codegen/kernel/expr.h"

namespace keirin::codegen {

int32_t Dag::add(const Node& node) {
  auto [it, fresh] = ids_.try_emplace(node.key(), static_cast<int32_t>(nodes.size()));
  if (fresh) nodes.push_back(node);
  return it->second;
}

}  // namespace keirin::codegen
