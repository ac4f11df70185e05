// SPDX-License-Identifier: Apache-2.0
#include "core/ir/bytes.h"

#include <gtest/gtest.h>

#include "abi/graph.h"
#include "core/ir/text.h"
#include "core/ir/verify.h"
#include "tests/unit/ir/random_graph.h"

namespace keirin {
namespace {

using testing::random_graph;
using testing::shuffled;

Graph parsed(const char* text) {
  Result<Graph> g = parse(text);
  EXPECT_TRUE(g.ok()) << g.status().text();
  EXPECT_TRUE(verify(*g).ok()) << verify(*g).text();
  return *g;
}

RegionBytes written(const Graph& g) {
  Result<RegionBytes> r = write_region(g);
  EXPECT_TRUE(r.ok()) << r.status().text();
  return *r;
}

TEST(Bytes, OrderAndIdsOfOpsLeaveNoTrace) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    Graph g = random_graph(seed);
    ASSERT_TRUE(verify(g).ok()) << verify(g).text();
    RegionBytes first = written(g);
    for (uint32_t k = 0; k < 5; ++k) {
      Graph other = shuffled(g, seed * 100 + k);
      ASSERT_TRUE(verify(other).ok()) << verify(other).text();
      RegionBytes second = written(other);
      ASSERT_EQ(first.bytes, second.bytes) << "seed " << seed;
      ASSERT_EQ(first.hash, second.hash);
      ASSERT_EQ(first.inputs.size(), second.inputs.size());
      for (size_t i = 0; i < first.inputs.size(); ++i) {  // the caller is told which value each input is
        EXPECT_EQ(g.values[first.inputs[i]].kind, other.values[second.inputs[i]].kind);
        EXPECT_EQ(g.values[first.inputs[i]].index, other.values[second.inputs[i]].index);
      }
    }
  }
}

TEST(Bytes, ReadingGivesTheSameBytesAgain) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    RegionBytes first = written(random_graph(seed));
    Result<Graph> g = read_graph(first.bytes);
    ASSERT_TRUE(g.ok()) << g.status().text();
    ASSERT_TRUE(verify(*g).ok()) << verify(*g).text() << print(*g);
    EXPECT_EQ(written(*g).bytes, first.bytes) << "seed " << seed;
  }
}

TEST(Bytes, WhatIsHashed) {
  const char* text = R"(graph {
    %0 = input 0 : bf16[2] "x"
    %1 = constant 3 : bf16[2]
    %2 = add(%0, %1) : bf16[2] unobserved
    %3 = neg(%2) : bf16[2]
    output %3
  })";
  Graph g = parsed(text);
  Hash hash = written(g).hash;
  Graph other = g;
  other.values[0].name = "y";
  other.values[1].index = 77;  // another weight in the same place
  other.ops[0].origin = "elsewhere";
  EXPECT_EQ(written(other).hash, hash);
  other = g;
  other.values[2].observed = true;
  EXPECT_NE(written(other).hash, hash);
  other = g;
  other.ops[1].code = OpCode::k_abs;
  EXPECT_NE(written(other).hash, hash);
  other = g;
  other.values[1].kind = ValueKind::kState;
  EXPECT_NE(written(other).hash, hash);
  other = g;
  other.values[0].type.strides = {2};
  EXPECT_NE(written(other).hash, hash);
}

TEST(Bytes, WeightsAndStates) {
  Graph g = parsed(R"(graph {
    %0 = input 0 : f32[2]
    %1 = constant 3 : f32[2]
    %2 = state 4 : f32[2]
    %3 = input 1 : f32[2]
    %4 = add(%1, %0) : f32[2]
    output %4
    output %4 updates %2
  })");
  RegionBytes r = written(g);
  EXPECT_EQ(r.inputs, (std::vector<ValueId>{1, 0, 2}));  // first use; the unused input is not there
  EXPECT_EQ(r.weights, (std::vector<ValueId>{1}));
  EXPECT_EQ(r.nodes, (std::vector<OpId>{0}));
  krn_graph b;
  ASSERT_EQ(krn_graph_open(r.bytes.data(), r.bytes.size(), &b), 0);
  EXPECT_EQ(krn_graph_input(&b, 0)->flags, KRN_INPUT_WEIGHT);
  EXPECT_EQ(krn_graph_input(&b, 0)->weight, 0u);
  EXPECT_EQ(krn_graph_input(&b, 2)->flags, 0u);
  EXPECT_EQ(krn_graph_output(&b, 0)->alias_input, KRN_NONE);
  EXPECT_EQ(krn_graph_output(&b, 1)->alias_input, 2u);
  Result<Graph> back = read_graph(r.bytes);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->outputs[1].updates, back->inputs[1]);
}

TEST(Bytes, EqualBodiesAreWrittenOnce) {
  const char* body = R"( {
      %0 = input 0 : f32[2,3]
      %1 = exp(%0) : f32[2,3]
      output %1
    })";
  std::string text = R"(graph {
    %0 = input 0 : f32[2,3]
    %1 = softmax(%0) {dim=1} : f32[2,3] body 0
    %2 = softmax(%1) {dim=1} : f32[2,3] body 1
    %3 = softmax(%2) {dim=1} : f32[2,3] body 2
    output %3
    body 0)" + std::string(body) + "\n body 1" + body + R"(
    body 2 {
      %0 = input 0 : f32[2,3]
      %1 = neg(%0) : f32[2,3]
      output %1
    }
  })";
  RegionBytes r = written(parsed(text.c_str()));
  krn_graph b;
  ASSERT_EQ(krn_graph_open(r.bytes.data(), r.bytes.size(), &b), 0);
  EXPECT_EQ(krn_graph_count(&b, KRN_SECTION_FUNCTIONS), 3u);
  EXPECT_EQ(krn_graph_node(&b, 0)->body, krn_graph_node(&b, 1)->body);
  EXPECT_NE(krn_graph_node(&b, 0)->body, krn_graph_node(&b, 2)->body);
  Result<Graph> back = read_graph(r.bytes);
  ASSERT_TRUE(back.ok()) << back.status().text();
  EXPECT_TRUE(verify(*back).ok()) << verify(*back).text();
  EXPECT_EQ(back->bodies.size(), 2u);
  EXPECT_EQ(written(*back).bytes, r.bytes);
}

TEST(Bytes, EqualLayersAreEqualBytes) {
  const char* kLayer = R"(graph {
    %%0 = input %d : f32[2,3]
    %%1 = constant %d : f32[3,3]
    %%2 = linear(%%0, %%1, _) : f32[2,3]
    %%3 = gelu(%%2) : f32[2,3] "%s"
    %%4 = add(%%0, %%3) : f32[2,3]
    output %%4
  })";
  char a[512], b[512];
  std::snprintf(a, sizeof(a), kLayer, 0, 11, "layer.0");
  std::snprintf(b, sizeof(b), kLayer, 5, 42, "layer.1");
  EXPECT_EQ(written(parsed(a)).hash, written(parsed(b)).hash);
}

TEST(Bytes, LongChainsNeedNoStack) {
  Graph g;
  ValueId v = g.add_input(testing::f32_type({2}), 0);
  for (int i = 0; i < 100000; ++i) v = g.ops[g.add_op(OpCode::k_neg, {v}, {}, {testing::f32_type({2})})].results[0];
  g.outputs.push_back({v, kNone, kNone});
  EXPECT_EQ(written(g).nodes.size(), 100000u);
}

TEST(Bytes, CorruptBytesAreRefusedWithAReason) {
  Result<Graph> g = read_graph(std::vector<uint8_t>(64));
  ASSERT_FALSE(g.ok());
  EXPECT_EQ(g.status().code(), Code::k_corrupt);
}

}  // namespace
}  // namespace keirin
