// SPDX-License-Identifier: Apache-2.0
//
// A Graph as text, for dumps, messages and golden tests: one op a line, `%3 = add(%1, %2) : f32[8,64]`.
// parse(print(g)) == g for every graph that verifies. Not a wire format: plugins get bytes.h.
//
//   graph {
//     %0 = input 0 : f32[2,3] "x"
//     %1 = constant 7 : f32[3,3]{1,3}            strides only where they are not row-major
//     %2 = linear(%0, %1, _) : f32[2,3] unobserved    _ is an absent operand
//     %3 = cumsum(%2) {dim=1} : f32[2,3] in [0, 6] @ "node 4"
//     %4 = opaque#5!(%3) {aten="aten::foo"} : f32[2,3]     call record 5; ! has effects
//     output %4
//     output %3 updates %0
//     body 0 { ... }                              named by ` body 0` behind an op
//   }
#pragma once

#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/ir/graph.h"

namespace keirin {

std::string print(const Graph& graph);
// One op as print writes it, without indent and newline: for messages.
std::string print_op(const Graph& graph, OpId op);

// Values may be named by any word; numbers that are exactly 0..n-1 become the ids, else values are numbered as they appear.
// The result is well-formed as text only: verify it.
Result<Graph> parse(std::string_view text);

}  // namespace keirin
