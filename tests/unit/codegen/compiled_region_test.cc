// SPDX-License-Identifier: Apache-2.0
//
// What stands round fusion: claims, artifacts, the memory planner, overlapping runs, damaged bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "plugins/codegen/plan/artifact.h"
#include "plugins/codegen/plan/memory_plan.h"
#include "plugins/codegen/region/claim.h"
#include "plugins/kit/error.h"
#include "tests/unit/codegen/check.h"

namespace keirin::codegen::test {
namespace {

constexpr uint8_t kF32 = kDType_f32;

RegionBuilder norm_region() {
  RegionBuilder g;
  int x = g.input(kF32, {4, 8}), w = g.input(kF32, {8, 8}), b = g.input(kF32, {8});
  g.output(g.layer_norm(g.linear(x, w, b), b, b, 1e-5));
  return g;
}

TEST(Claim, NamesWhatItRefuses) {
  RegionBuilder g;
  int x = g.input(kF32, {4, 1000});
  int relu = g.unary(kOp_relu, x);
  g.output(g.op(kOp_cumsum, {relu}, kF32, {4, 1000}, {{kAttr_dim, int64_t{1}}}));
  g.output(g.op(kOp_lstm, {x, x, x}, kF32, {4, 1000}, {}, 3));
  std::vector<uint8_t> bytes = g.bytes();
  krn_graph graph;
  ASSERT_EQ(krn_graph_open(bytes.data(), bytes.size(), &graph), 0);
  InterpBackend backend;
  ClaimResult result = claim(graph, backend);
  EXPECT_EQ(result.claimed.nodes, std::vector<uint32_t>{0});
  ASSERT_EQ(result.refused.size(), 2u);
  EXPECT_EQ(result.refused[0].why, "a long scan runs in eager's kernel");
  EXPECT_EQ(result.refused[1].why, "the test backend does not take it");
}

// Whole numbers are computed with, but for what may stop the program: division, and powers that divide.
TEST(Claim, TakesArithmeticOfWholeNumbers) {
  for (uint8_t dtype : {uint8_t{kDType_i64}, uint8_t{kDType_i32}, uint8_t{kDType_u8}, kF32}) {
    RegionBuilder g;
    const int x = g.input(dtype, {4, 8}), y = g.input(dtype, {4, 8});
    for (uint32_t op : {kOp_add, kOp_sub, kOp_mul, kOp_minimum, kOp_maximum, kOp_div, kOp_fmod, kOp_pow}) g.output(g.binary(op, x, y));
    const std::vector<uint8_t> bytes = g.bytes();
    krn_graph graph;
    ASSERT_EQ(krn_graph_open(bytes.data(), bytes.size(), &graph), 0);
    InterpBackend backend;
    const ClaimResult result = claim(graph, backend);
    EXPECT_EQ(result.claimed.nodes.size(), dtype == kF32 ? 8u : 5u) << int{dtype};
    for (const auto& refused : result.refused) EXPECT_EQ(refused.why, "integer division can raise");
  }
}

// The estimate of what a node costs counts each of its operands once, whatever stands behind it.
TEST(Claim, CostsWhatItReadsAndWrites) {
  const auto cost = [](int copies, bool others) {
    RegionBuilder g;
    const int x = g.input(kF32, {1 << 10, 1 << 10});
    for (int i = 0; i < copies; ++i) g.output(g.unary(kOp_exp, x));
    if (others) g.output(g.binary(kOp_add, x, x));
    const std::vector<uint8_t> bytes = g.bytes();
    krn_graph graph;
    EXPECT_EQ(krn_graph_open(bytes.data(), bytes.size(), &graph), 0);
    InterpBackend backend;
    return claim(graph, backend).claimed.cost_ns;
  };
  EXPECT_GT(cost(1, false), 0);
  EXPECT_DOUBLE_EQ(cost(2, false), 2 * cost(1, false));
  EXPECT_DOUBLE_EQ(cost(1, true), 2.5 * cost(1, false)) << "two are read and one is written";
}

TEST(Artifact, WarmLoadGeneratesNothing) {
  RegionBuilder g = norm_region();
  std::vector<uint8_t> bytes = g.bytes();
  std::array<uint8_t, 32> hash{1, 2, 3}, other{9};
  CompileContext context;
  InterpBackend cold, warm;
  auto made = CompiledRegion::compile(bytes, cold, context);
  EXPECT_EQ(made->num_codegen(), 1u);
  std::vector<uint8_t> body = save_artifact(*made, cold, hash);
  EXPECT_EQ(load_artifact(body, bytes, hash, warm, context)->num_codegen(), 0u);
  auto code_of = [&](std::vector<uint8_t> damaged, const std::array<uint8_t, 32>& h) -> krn_code {
    InterpBackend fresh;
    try {
      load_artifact(damaged, bytes, h, fresh, context);
    } catch (const kit::Error& e) {
      return e.code();
    }
    return KRN_STATUS_ok;
  };
  EXPECT_EQ(code_of(body, other), KRN_STATUS_corrupt);
  for (size_t i = 0; i < body.size(); i += 7) {
    std::vector<uint8_t> damaged = body;
    damaged[i] ^= 0x10;
    krn_code code = code_of(damaged, hash);
    EXPECT_TRUE(code == KRN_STATUS_corrupt || (i >= 12 && i < 16)) << "byte " << i;  // 12..15 are reserved
  }
  // Two neighbours at once: damage comes in bursts.
  for (size_t i = 16; i + 1 < body.size(); ++i) {
    std::vector<uint8_t> damaged = body;
    damaged[i] ^= 0x80, damaged[i + 1] ^= 0x80;
    EXPECT_EQ(code_of(damaged, hash), KRN_STATUS_corrupt) << "bytes " << i << " and the next";
  }
  body.resize(body.size() - 1);
  EXPECT_EQ(code_of(body, hash), KRN_STATUS_corrupt);
}

// Pointwise chains that meet before row reductions: merges and inlinings, and three stored results.
RegionBuilder many_fusions() {
  RegionBuilder g;
  int x = g.input(kF32, {4, 8}), w = g.input(kF32, {8}), b = g.input(kF32, {8});
  int shared = g.unary(kOp_exp, g.binary(kOp_add, x, x));
  g.output(g.layer_norm(g.binary(kOp_mul, shared, g.unary(kOp_relu, x)), w, b, 1e-5));
  g.output(g.softmax(g.binary(kOp_sub, shared, w), 1));
  g.output(g.reduce(kOp_sum, shared, {0}, false));
  return g;
}

TEST(Artifact, WarmLoadBuildsTheSameKernels) {
  const std::vector<uint8_t> bytes = many_fusions().bytes();
  const std::array<uint8_t, 32> hash{1, 2, 3};
  InterpBackend cold, warm;
  const auto made = CompiledRegion::compile(bytes, cold, {});
  const auto loaded = load_artifact(save_artifact(*made, cold, hash), bytes, hash, warm, {});
  EXPECT_EQ(loaded->describe(), made->describe());
  EXPECT_EQ(loaded->workspace_bytes(), made->workspace_bytes());
  EXPECT_EQ(loaded->grouping(), made->grouping());

  // Nothing is searched for: what is given is done, or refused where it is not the region's outputs, each once.
  Grouping apart;
  for (const auto& results : made->grouping())
    for (int32_t t : results) apart.push_back({t});
  ASSERT_GT(apart.size(), made->grouping().size());
  EXPECT_EQ(CompiledRegion::compile(bytes, warm, {}, &apart)->num_kernels(), apart.size());
  for (const Grouping& wrong : {Grouping{}, Grouping{apart[0]}, Grouping{{-1}}, Grouping{{1000}}, Grouping{{0}}, Grouping{{}},
                                Grouping{apart[0], apart[0]}}) {
    try {
      CompiledRegion::compile(bytes, warm, {}, &wrong);
      ADD_FAILURE() << wrong.size() << " kernels were taken";
    } catch (const kit::Error& error) {
      EXPECT_EQ(error.code(), KRN_STATUS_corrupt) << error.what();
    }
  }
}

// At other sizes a library may take what it left to a kernel before.
TEST(Artifact, WhatAKernelStoresNoLibraryTakes) {
  RegionBuilder g;
  const int x = g.input(kF32, {4, 8}), w = g.input(kF32, {6, 8});
  g.output(g.binary(kOp_add, g.unary(kOp_tanh, g.linear(x, w, g.input(kF32, {6}))), g.input(kF32, {4, 6})));
  InterpBackend refuses, takes;
  takes.take_every_post_op = true;
  const Grouping known = check(g, refuses).executable->grouping();
  EXPECT_EQ(known.size(), 1u);
  EXPECT_EQ(check(g, takes).executable->num_kernels(), 0u);
  EXPECT_EQ(check(g, takes, {}, 1e-4, &known).executable->grouping(), known);
}

TEST(MemoryPlan, LivesThatOverlapDoNotShare) {
  std::mt19937 gen(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<TempLife> temps;
    int64_t peak = 0;
    for (int i = 0; i < 20; ++i) {
      int first = static_cast<int>(gen() % 15);
      temps.push_back({static_cast<int64_t>(1 + gen() % 4000), first, first + static_cast<int>(gen() % 5)});
    }
    MemoryPlan plan = plan_memory(temps, 64);
    for (int step = 0; step < 20; ++step) {
      int64_t live = 0;
      for (const TempLife& t : temps) live += t.first <= step && step <= t.last ? (t.bytes + 63) / 64 * 64 : 0;
      peak = std::max(peak, live);
    }
    for (size_t a = 0; a < temps.size(); ++a) {
      EXPECT_EQ(plan.offsets[a] % 64, 0);
      EXPECT_LE(plan.offsets[a] + temps[a].bytes, plan.total_bytes);
      for (size_t b = 0; b < a; ++b) {
        bool together = temps[a].first <= temps[b].last && temps[b].first <= temps[a].last;
        bool apart = plan.offsets[a] + temps[a].bytes <= plan.offsets[b] || plan.offsets[b] + temps[b].bytes <= plan.offsets[a];
        EXPECT_TRUE(!together || apart);
      }
    }
    EXPECT_LE(plan.total_bytes, peak * 2);
  }
}

TEST(CompiledRegion, RunsOverlap) {
  RegionBuilder g = norm_region();
  CompileContext context;
  InterpBackend backend;
  auto exec = CompiledRegion::compile(g.bytes(), backend, context);
  auto work = [&](float seed, std::vector<float>& out) {
    std::vector<float> x(32), w(64), b(8, seed);
    for (size_t i = 0; i < 64; ++i) w[i] = static_cast<float>(i % 7) - seed;
    for (size_t i = 0; i < 32; ++i) x[i] = static_cast<float>(i % 5) * seed;
    std::vector<char> workspace(static_cast<size_t>(exec->workspace_bytes()));
    out.resize(32);
    krn_tensor in[3]{}, o{};
    in[0].data = x.data(), in[1].data = w.data(), in[2].data = b.data(), o.data = out.data();
    krn_run run{};
    run.inputs = in, run.num_inputs = 3, run.outputs = &o, run.num_outputs = 1;
    run.workspace = workspace.data(), run.workspace_bytes = workspace.size();
    for (int i = 0; i < 200; ++i) ASSERT_EQ(exec->run(run, nullptr, nullptr, nullptr), KRN_STATUS_ok);
  };
  std::vector<float> one, two, again_one, again_two;
  work(1, one), work(2, two);
  std::thread t([&] { work(1, again_one); });
  work(2, again_two);
  t.join();
  EXPECT_EQ(one, again_one);
  EXPECT_EQ(two, again_two);
}

TEST(CompiledRegion, DamagedBytesAreRefusedOrMakeSense) {
  std::vector<uint8_t> bytes = norm_region().bytes();
  CompileContext context;
  int refused = 0, kept = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (uint8_t flip : {0x01, 0x40}) {
      std::vector<uint8_t> damaged = bytes;
      damaged[i] ^= flip;
      InterpBackend backend;
      try {
        CompiledRegion::compile(damaged, backend, context);
        ++kept;
      } catch (const kit::Error&) {
        ++refused;
      }
    }
  }
  std::printf("%d refused, %d still a region\n", refused, kept);
  EXPECT_GT(refused, kept);
}

struct EarlyStep final : Step {
  explicit EarlyStep(int* told) : told_(told) {}
  krn_code run(const RunContext&) const override { return KRN_STATUS_ok; }
  std::string describe() const override { return "early"; }
  bool begins_early() const override { return true; }
  void let_next_begin() override { ++*told_; }
  int* told_;
};

struct EarlyBackend : InterpBackend {
  int told = 0;
  std::unique_ptr<Step> lower_anchor(const ChosenAnchor&, const CompileContext&) override { return std::make_unique<EarlyStep>(&told); }
};

TEST(CompiledRegion, AStepIsToldThatTheNextBeginsEarly) {
  RegionBuilder g;
  int x = g.input(kF32, {4, 8}), w = g.input(kF32, {8, 8}), b = g.input(kF32, {8});
  g.output(g.linear(g.linear(g.linear(x, w, b), w, b), w, b));
  EarlyBackend backend;
  auto exec = CompiledRegion::compile(g.bytes(), backend, {});
  EXPECT_EQ(exec->num_anchors(), 3u);
  EXPECT_EQ(backend.told, 2) << "each but the last";
}

struct NumberedChoice final : AnchorChoice {
  explicit NumberedChoice(int n) : number(n) {}
  int number;
};

struct ChoosingBackend : InterpBackend {
  mutable int asked = 0;
  std::vector<const AnchorDesc*> prepared;
  std::vector<int> lowered;
  std::shared_ptr<const AnchorChoice> choose_anchor(const AnchorDesc& anchor) const override {
    EXPECT_TRUE(anchor.results[0].present()) << "its storage is final";
    return std::make_shared<NumberedChoice>(asked++);
  }
  void prepare_anchors(std::span<const ChosenAnchor> anchors) override {
    for (const ChosenAnchor& each : anchors) prepared.push_back(each.desc);
  }
  std::unique_ptr<Step> lower_anchor(const ChosenAnchor& anchor, const CompileContext& context) override {
    EXPECT_EQ(anchor.desc, prepared[lowered.size()]);
    lowered.push_back(static_cast<const NumberedChoice&>(*anchor.choice).number);
    return InterpBackend::lower_anchor(anchor, context);
  }
};

TEST(CompiledRegion, AnAnchorIsChosenOnceAndTheChoiceIsCarried) {
  RegionBuilder g;
  int x = g.input(kF32, {4, 8}), w = g.input(kF32, {8, 8}), b = g.input(kF32, {8});
  g.output(g.linear(g.softmax(g.linear(g.linear(x, w, b), w, b), 1), w, b));
  ChoosingBackend backend;
  auto exec = CompiledRegion::compile(g.bytes(), backend, {});
  EXPECT_EQ(exec->num_anchors(), 3u);
  EXPECT_EQ(backend.asked, 3);
  EXPECT_EQ(backend.lowered, (std::vector<int>{0, 1, 2}));
}

TEST(CompiledRegion, ALongRegionCompilesInTime) {
  RegionBuilder g;
  int x = g.input(kF32, {16, 64}), w = g.input(kF32, {64, 64}, {}, true), b = g.input(kF32, {64}, {}, true);
  for (int layer = 0; layer < 60; ++layer) {
    int h = g.unary(kOp_gelu, g.linear(g.layer_norm(x, b, b, 1e-5), w, b));
    x = g.binary(kOp_add, x, g.linear(h, w, b));
  }
  g.output(x);
  CompileContext context;
  InterpBackend backend;
  auto start = std::chrono::steady_clock::now();
  auto exec = CompiledRegion::compile(g.bytes(), backend, context);
  double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  std::printf("%zu nodes, %u kernels, %.1f ms\n", read_region(g.bytes()).nodes.size(), exec->num_kernels(), ms);
  EXPECT_LT(ms, 5000);
}

}  // namespace
}  // namespace keirin::codegen::test
