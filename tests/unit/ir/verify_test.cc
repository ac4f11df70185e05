// SPDX-License-Identifier: Apache-2.0
//
// One defect at a time: each must be found, and the graph without it must pass.
#include "core/ir/verify.h"

#include <gtest/gtest.h>

#include <functional>

#include "core/ir/text.h"

namespace keirin {
namespace {

Graph good() {
  Result<Graph> g = parse(R"(graph {
    %0 = input 0 : f32[2,3]
    %1 = input 1 : f32[2,3]
    %2 = constant 0 : f32[3]
    %3 = state 1 : f32[2,3]
    %4 = add(%0, %1) : f32[2,3]
    %5 = layer_norm(%4, %2, _) {rank=1, eps=1e-05} : f32[2,3] body 0
    %6 = lt(%5, %0) : bool[2,3]
    %7 = select(%6, %5, %0) : f32[2,3]
    output %7
    output %5 updates %3
    body 0 {
      %0 = input 0 : f32[2,3]
      %1 = input 1 : f32[3]
      %2 = neg(%0) : f32[2,3]
      output %2
    }
  })");
  EXPECT_TRUE(g.ok()) << g.status().text();
  return *g;
}

TEST(Verify, FindsEachDefect) {
  ASSERT_TRUE(verify(good()).ok()) << verify(good()).text();
  struct Case {
    const char* name;
    std::function<void(Graph&)> spoil;
  };
  const Case kCases[] = {
      {"order", [](Graph& g) { g.ops[0].operands[0] = 7; }},
      {"range of a value", [](Graph& g) { g.ops[0].operands[0] = 99; }},
      {"absent operand of a scalar row", [](Graph& g) { g.ops[0].operands[0] = kNone; }},
      {"arity", [](Graph& g) { g.ops[0].operands.pop_back(); }},
      {"sizes of a scalar row", [](Graph& g) { g.values[1].type = g.values[2].type; }},
      {"dtypes of a scalar row", [](Graph& g) { g.values[1].type.dtype = DType::k_f64; }},
      {"dtype class", [](Graph& g) { g.values[0].type.dtype = g.values[1].type.dtype = DType::k_bool; }},
      {"condition of select", [](Graph& g) { g.values[6].type.dtype = DType::k_u8; }},
      {"number of results", [](Graph& g) { g.ops[0].results.clear(); }},
      {"producer", [](Graph& g) { g.values[4].producer = 1; }},
      {"result number", [](Graph& g) { g.values[4].index = 1; }},
      {"unlisted input", [](Graph& g) { g.inputs.pop_back(); }},
      {"input listed twice", [](Graph& g) { g.inputs.push_back(0); }},
      {"update of a constant", [](Graph& g) { g.outputs[1].updates = 2; }},
      {"update of another type", [](Graph& g) { g.values[3].type.dtype = DType::k_f64; }},
      {"output behind an update", [](Graph& g) { std::swap(g.outputs[0], g.outputs[1]); }},
      {"output that does not exist", [](Graph& g) { g.outputs[0].value = 99; }},
      {"body that does not exist", [](Graph& g) { g.ops[1].body = 4; }},
      {"body with another type", [](Graph& g) { g.bodies[0].values[1].type.sizes[0] = 4; }},
      {"defect in a body", [](Graph& g) { g.bodies[0].ops[0].operands[0] = 2; }},
      {"kind of an attribute", [](Graph& g) { g.ops[1].set(AttrKey::k_eps, int64_t{1}); }},
      {"attribute of another row", [](Graph& g) { g.ops[0].set(AttrKey::k_eps, 1.0); }},
      {"unknown row", [](Graph& g) { g.ops[0].code = static_cast<OpCode>(77); }},
      {"effects of a pure row", [](Graph& g) { g.ops[0].effects = true; }},
      {"strides", [](Graph& g) { g.values[0].type.strides.pop_back(); }},
      {"negative size", [](Graph& g) { g.values[2].type.sizes[0] = -1; }},
      {"no dtype", [](Graph& g) { g.values[2].type.dtype = DType::kNone; }},
  };
  for (const Case& c : kCases) {
    Graph g = good();
    c.spoil(g);
    EXPECT_FALSE(verify(g).ok()) << c.name;
  }
}

}  // namespace
}  // namespace keirin
