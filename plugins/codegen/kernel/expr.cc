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

bool is_special(Prim p) {
  switch (p) {
    case Prim::kExp:
    case Prim::kExp2:
    case Prim::kExpm1:
    case Prim::kLog:
    case Prim::kLog1p:
    case Prim::kLog2:
    case Prim::kTanh:
    case Prim::kErf:
    case Prim::kSin:
    case Prim::kCos:
    case Prim::kPow:
    case Prim::kFmod:
      return true;
    default:
      return false;
  }
}

}  // namespace keirin::codegen
