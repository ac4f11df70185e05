// SPDX-License-Identifier: Apache-2.0
//
// The smallest region that a plugin can be asked about.
#pragma once

#include "core/ir/bytes.h"

namespace keirin::test {

// relu(neg(x)) over n floats, or relu alone.
inline RegionBytes relu_region(int64_t n, bool with_neg = false) {
  Graph g;
  const Type type{DType::k_f32, {n}, {1}};
  ValueId v = g.add_input(type, 0);
  if (with_neg) v = g.ops[g.add_op(OpCode::k_neg, {v}, {}, {type})].results[0];
  v = g.ops[g.add_op(OpCode::k_relu, {v}, {}, {type})].results[0];
  g.outputs.push_back({v, kNone, kNone});
  return *write_region(g);
}

}  // namespace keirin::test
