// SPDX-License-Identifier: Apache-2.0
//
// The promises of a cut, on random graphs with random claims: every op is done, steps are in a legal order, regions are
// convex, and what a region's own graph says is what the whole graph says.
#include "core/partition/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/ir/bytes.h"
#include "core/ir/text.h"
#include "core/ir/verify.h"
#include "tests/unit/ir/random_graph.h"

namespace keirin {
namespace {

using testing::random_graph;

Graph parsed(const std::string& text) {
  Result<Graph> g = parse(text);
  EXPECT_TRUE(g.ok()) << g.status().text();
  EXPECT_TRUE(verify(*g).ok()) << verify(*g).text();
  return *g;
}

Claim all_of(const Graph& g, uint32_t plugin = 0) {
  Claim claim{plugin, {}};
  for (OpId op = 0; op < g.ops.size(); ++op) claim.ops.push_back(op);
  return claim;
}

Partition cut(const Graph& g, const std::vector<Claim>& claims) {
  Result<Partition> p = partition(g, claims);
  EXPECT_TRUE(p.ok()) << p.status().text();
  return *p;
}

// Plays the steps: every read must be of a leaf, or made by an earlier step (or, inside a region, by the region).
void check_steps(const Graph& g, const Partition& p) {
  std::vector<uint8_t> ready(g.values.size()), done(g.ops.size());
  for (ValueId v = 0; v < g.values.size(); ++v) ready[v] = g.values[v].kind != ValueKind::kResult;
  OpId last_effect = 0;
  for (const Step& step : p.steps) {
    if (step.kind == Step::kEager) {
      const Op& op = g.ops[step.index];
      done[step.index] = 1;
      for (ValueId v : op.operands) EXPECT_TRUE(v == kNone || ready[v]) << "op " << step.index;
      for (ValueId v : op.results) ready[v] = 1;
      if (op.effects) {
        EXPECT_GE(step.index, last_effect);
        last_effect = step.index;
      }
      continue;
    }
    const Region& region = p.regions[step.index];
    const RegionGraph& inner = region.cut;
    ASSERT_TRUE(verify(inner.graph).ok()) << verify(inner.graph).text();
    ASSERT_EQ(inner.graph.ops.size(), region.ops.size());
    for (ValueId v : inner.graph.inputs) EXPECT_TRUE(ready[inner.values[v]]);  // convex: nothing inside waits for outside
    for (size_t i = 0; i < region.ops.size(); ++i) {
      EXPECT_EQ(inner.graph.ops[i].code, g.ops[region.ops[i]].code);
      for (size_t k = 0; k < inner.graph.ops[i].operands.size(); ++k)
        EXPECT_EQ(inner.values[inner.graph.ops[i].operands[k]], g.ops[region.ops[i]].operands[k]);
      done[region.ops[i]] = 1;
    }
    for (const Output& output : inner.graph.outputs)
      if (output.updates == kNone) ready[inner.values[output.value]] = 1;
    Result<RegionBytes> bytes = write_region(inner.graph);
    EXPECT_TRUE(bytes.ok()) << bytes.status().text();
  }
  for (OpId op = 0; op < g.ops.size(); ++op) EXPECT_TRUE(done[op]) << "op " << op << " is in no step";
  for (size_t k = 0; k < g.outputs.size(); ++k)
    EXPECT_TRUE(p.updated_in_place[k] || ready[g.outputs[k].value]);
}

// How often an op is computed: once, but for floating ones.
void check_once(const Graph& g, const Partition& p) {
  std::vector<int> times(g.ops.size());
  for (const Step& step : p.steps)
    if (step.kind == Step::kEager) ++times[step.index];
  for (const Region& region : p.regions)
    for (OpId op : region.ops) ++times[op];
  for (OpId op = 0; op < g.ops.size(); ++op)
    EXPECT_TRUE(times[op] == 1 || (times[op] > 1 && g.ops[op].code == OpCode::k_permute)) << "op " << op;
}

TEST(Partition, RandomGraphsAndClaims) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    Graph g = random_graph(seed, {.num_ops = 40, .opaque = 0.1 + 0.05 * (seed % 4)});
    std::mt19937 rng(seed);
    Claim a{0, {}}, b{1, {}};
    for (OpId op = 0; op < g.ops.size(); ++op) {
      if (rng() % 100 < 70) a.ops.push_back(op);
      if (rng() % 100 < 40) b.ops.push_back(op);
    }
    Partition p = cut(g, {a, b});
    check_steps(g, p);
    check_once(g, p);
    for (const Region& region : p.regions)
      for (OpId op : region.ops) {
        const Claim& claim = region.plugin == 0 ? a : b;
        EXPECT_TRUE(std::binary_search(claim.ops.begin(), claim.ops.end(), op));
        EXPECT_NE(g.ops[op].code, OpCode::kOpaque);
      }
    if (::testing::Test::HasFailure()) FAIL() << "seed " << seed << "\n" << print(g);
  }
}

TEST(Partition, OneClaimerAndNothingOpaqueIsOneRegion) {
  Graph g = random_graph(3, {.num_ops = 30, .opaque = 0});
  Partition p = cut(g, {all_of(g)});
  EXPECT_EQ(p.regions.size(), 1u);
  EXPECT_TRUE(cut(g, {}).regions.empty());
}

TEST(Partition, ALateEagerOpDoesNotCutAChain) {
  Graph g = parsed(R"(graph {
    %x = input 0 : f32[4]
    %a = exp(%x) : f32[4]
    %b = tanh(%a) : f32[4]
    %e = opaque#0(%x) {aten="aten::foo"} : f32[4]
    %c = add(%b, %e) : f32[4]
    %d = relu(%c) : f32[4]
    output %d
  })");
  Partition p = cut(g, {all_of(g)});
  ASSERT_EQ(p.regions.size(), 1u);
  EXPECT_EQ(p.regions[0].ops, (std::vector<OpId>{0, 1, 3, 4}));
  EXPECT_EQ(p.steps[0].kind, Step::kEager);
}

TEST(Partition, IslandsGoBackButAnchorsStay) {
  Graph g = parsed(R"(graph {
    %x = input 0 : f32[4,4]
    %a = exp(%x) : f32[4,4]
    %e = opaque#0(%a) {aten="aten::foo"} : f32[4,4]
    %m = matmul(%e, %e) : f32[4,4]
    output %m
  })");
  Partition p = cut(g, {all_of(g)});
  ASSERT_EQ(p.regions.size(), 1u);
  EXPECT_EQ(p.regions[0].ops, (std::vector<OpId>{2}));
  EXPECT_EQ(p.steps.size(), 3u);
}

// Two plugins and an eager op. Without %a and %e, islands of the second plugin, %f is one; only without it too do its readers join
// the region above.
TEST(Partition, IslandsThatLeaveOthersAloneGoInTurn) {
  Graph g = parsed(R"(graph {
    %x = input 0 : f32[4]
    %a = exp(%x) : f32[4]
    %b = tanh(%a) : f32[4]
    %c = opaque#0(%a) {aten="aten::foo"} : f32[4]
    %d = add(%a, %b) : f32[4]
    %e = sin(%d) : f32[4]
    %f = add(%a, %c) : f32[4]
    %g = add(%b, %f) : f32[4]
    %h = relu(%f) : f32[4]
    output %e
    output %g
    output %h
  })");
  Partition p = cut(g, {{0, {1, 3, 6, 7}}, {1, {0, 4, 5}}});
  ASSERT_EQ(p.regions.size(), 1u);
  EXPECT_EQ(p.regions[0].ops, (std::vector<OpId>{1, 3, 6, 7}));
  check_steps(g, p);
}

TEST(Partition, ViewsOfLeavesAndFactoriesGoWithEachReader) {
  Graph g = parsed(R"(graph {
    %w = constant 0 : f32[4]
    %x = input 0 : f32[2,4]
    %r = reshape(%w) {sizes=[1,4]} : f32[1,4]
    %v = expand(%r) {sizes=[2,4]} : f32[2,4]{0,1}
    %a = mul(%x, %v) : f32[2,4]
    %b = exp(%a) : f32[2,4]
    %e = opaque#0(%b) {aten="aten::foo"} : f32[2,4]
    %c = mul(%e, %v) : f32[2,4]
    %d = exp(%c) : f32[2,4]
    output %d
  })");
  Partition p = cut(g, {all_of(g)});
  ASSERT_EQ(p.regions.size(), 2u);
  EXPECT_EQ(p.regions[0].ops, (std::vector<OpId>{0, 1, 2, 3}));
  EXPECT_EQ(p.regions[1].ops, (std::vector<OpId>{0, 1, 5, 6}));
  EXPECT_EQ(p.regions[0].cut.graph.outputs.size(), 1u);
  EXPECT_EQ(p.steps.size(), 3u);
  EXPECT_EQ(write_region(p.regions[0].cut.graph)->hash, write_region(p.regions[1].cut.graph)->hash);
}

TEST(Partition, UpdatesInPlaceOnlyWhereNobodyElseReads) {
  const std::string text = R"(graph {
    %s = state 0 : f32[4]
    %x = input 0 : f32[4]
    %a = add(%s, %x) : f32[4]
    %b = exp(%a) : f32[4]
    MORE
    output %b
    OUTPUT
    output %a updates %s
  })";
  auto with = [&](const std::string& more, const std::string& output) {
    std::string t = text;
    t.replace(t.find("MORE"), 4, more);
    t.replace(t.find("OUTPUT"), 6, output);
    return parsed(t);
  };
  Graph alone = with("", "");
  Partition p = cut(alone, {all_of(alone)});
  EXPECT_EQ(p.updated_in_place, (std::vector<uint8_t>{0, 1}));
  ASSERT_EQ(p.regions[0].cut.graph.outputs.size(), 2u);
  EXPECT_NE(p.regions[0].cut.graph.outputs[1].updates, kNone);
  Graph read_elsewhere = with("%e = opaque#0(%s) {aten=\"aten::foo\"} : f32[4]", "output %e");
  EXPECT_EQ(cut(read_elsewhere, {all_of(read_elsewhere)}).updated_in_place, (std::vector<uint8_t>{0, 0, 0}));
  Graph returned = with("", "output %s");
  EXPECT_EQ(cut(returned, {all_of(returned)}).updated_in_place, (std::vector<uint8_t>{0, 0, 0}));
}

TEST(Partition, ClaimsOfOpsThatDoNotExistAreRefused) {
  Graph g = random_graph(1);
  EXPECT_FALSE(partition(g, {{0, {99999}}}).ok());
}

}  // namespace
}  // namespace keirin
