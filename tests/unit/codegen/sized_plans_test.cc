// SPDX-License-Identifier: Apache-2.0
//
// Plans that were learned of other sizes are those that planning makes, and what was not learned is not answered.
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "plugins/codegen/plan/sized_plans.h"
#include "plugins/kit/error.h"
#include "tests/unit/codegen/check.h"

namespace keirin::codegen::test {
namespace {

constexpr uint8_t kF32 = kDType_f32;
using Make = std::function<RegionBuilder(int64_t b, int64_t n)>;

RegionBuilder layer(int64_t b, int64_t n, double eps = 1e-5, int64_t width = 8) {
  RegionBuilder g;
  const int x = g.input(kF32, {b, n, width}), w = g.input(kF32, {width, width}, {}, true), v = g.input(kF32, {width}, {}, true);
  const int y = g.layer_norm(g.binary(kOp_add, g.linear(x, w, v), x), v, v, eps);
  const int rows = g.reshape(y, {b * n, width});
  g.output(g.reshape(g.unary(kOp_tanh, rows), {b, n, width}));
  g.output(g.mean(y, {1}));  // 1 / n
  return g;
}

RegionBuilder attention(int64_t b, int64_t n) {
  RegionBuilder g;
  const int x = g.input(kF32, {b, n, 6}), mask = g.input(kF32, {b, 1, n});
  const int scores = g.softmax(g.binary(kOp_add, g.matmul(x, g.permute(x, {0, 2, 1})), mask), 2);
  g.output(g.matmul(scores, x));
  g.output(g.slice(x, 1, 0, n - 1));
  g.output(g.cat({x, g.unary(kOp_relu, x)}, 1));
  return g;
}

// By LibTorch's way of padding: guards whose limits follow n.
RegionBuilder windows(int64_t b, int64_t n) {
  RegionBuilder g;
  const int x = g.input(kF32, {b, 3, n});
  const int wide = g.pad(x, {0, 0, 1}, {0, 0, 2}, 0.5);
  g.output(g.binary(kOp_add, g.slice(wide, 2, 0, n), g.binary(kOp_mul, g.slice(wide, 2, 3, n + 3), g.flip(x, {2}))));
  return g;
}

std::unique_ptr<CompiledRegion> compiled(const RegionBuilder& g, Backend& backend, const Grouping& known, SizedPlans* sized) {
  return CompiledRegion::compile(g.bytes(), backend, {}, &known, sized);
}

struct Drawn {
  std::mt19937 gen{3};
  std::pair<int64_t, int64_t> operator()() { return {2 + gen() % 6, 9 + gen() % 40}; }
};

class AtAllSizes : public testing::TestWithParam<std::pair<const char*, Make>> {};

TEST_P(AtAllSizes, APlanIsWhatPlanningMakes) {
  const Make& make = GetParam().second;
  InterpBackend backend;
  const Grouping known = check(make(3, 11), backend).executable->grouping();
  SizedPlans sized;
  Drawn drawn;
  for (int i = 0; i < 120; ++i) {
    const auto [b, n] = drawn();
    const RegionBuilder g = make(b, n);
    const auto own = compiled(g, backend, known, nullptr), learned = compiled(g, backend, known, &sized);
    EXPECT_EQ(learned->describe(), own->describe()) << b << " " << n;
    EXPECT_EQ(learned->workspace_bytes(), own->workspace_bytes());
    EXPECT_EQ(learned->grouping(), own->grouping());
    ASSERT_EQ(learned->kernels().size(), own->kernels().size());
    for (size_t k = 0; k < own->kernels().size(); ++k) EXPECT_TRUE(*learned->kernels()[k][0] == *own->kernels()[k][0]) << b << " " << n;
    if (i % 10 == 0) check(g, backend, {}, 1e-4, &known, &sized);  // it runs, and is right
  }
  EXPECT_GT(sized.num_answers(), 60u);
}

INSTANTIATE_TEST_SUITE_P(Programs, AtAllSizes,
                         testing::Values(std::pair<const char*, Make>{"layer", [](int64_t b, int64_t n) { return layer(b, n); }},
                                         std::pair<const char*, Make>{"attention", attention},
                                         std::pair<const char*, Make>{"windows", windows}),
                         [](const auto& info) { return info.param.first; });

// What was planned at so many sizes of layer().
struct Learned {
  InterpBackend backend;
  Grouping known = check(layer(3, 11), backend).executable->grouping();
  SizedPlans sized;
  Learned() {
    Drawn drawn;
    for (int i = 0; i < 40; ++i) {
      const auto [b, n] = drawn();
      compiled(layer(b, n), backend, known, &sized);
    }
  }
  bool answers(const RegionBuilder& g) {
    const uint64_t before = sized.num_answers();
    compiled(g, backend, known, &sized);
    return sized.num_answers() > before;
  }
};

TEST(SizedPlans, AnotherRegionIsNotAnswered) {
  Learned its;
  EXPECT_TRUE(its.answers(layer(4, 20)));
  EXPECT_FALSE(its.answers(layer(4, 20, 1e-6))) << "a number that no size decides";
  EXPECT_FALSE(its.answers(layer(4, 20, 1e-5, 9)));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(its.answers(layer(5, 20 + i))) << "what others were asked says nothing of it";
}

TEST(SizedPlans, SizesBeyondThoseThatWerePlannedAreNotAnswered) {
  Learned its;
  EXPECT_FALSE(its.answers(layer(4, 100)));
  EXPECT_TRUE(its.answers(layer(4, 90))) << "between those that were planned now";
  EXPECT_FALSE(its.answers(layer(1, 20))) << "of a size of one";
}

TEST(SizedPlans, ARegionWithoutSizesIsNotAnsweredTwice) {
  InterpBackend backend;
  const Grouping known = check(layer(3, 11), backend).executable->grouping();
  SizedPlans sized;
  for (int i = 0; i < 20; ++i) compiled(layer(3, 11), backend, known, &sized);
  EXPECT_EQ(sized.num_answers(), 0u) << "one sample says nothing";
}

// Planning is asked again every so often, and when it says otherwise nothing is said of that region any more.
TEST(SizedPlans, WhatPlanningContradictsIsForgotten) {
  SizedPlans own;
  PlanParts parts;
  parts.num_inputs = 1;
  parts.buffers.resize(1);
  const auto made = [&](int64_t n, int64_t bytes_of) {
    parts.buffers[0].bytes = bytes_of;
    own.made(layer(4, n).bytes(), "a", parts);
  };
  for (int64_t n = 10; n < 40; n += 2) made(n, 8 * n);
  const auto said = own.at(layer(4, 21).bytes(), "a");
  ASSERT_TRUE(said);
  EXPECT_EQ(said->parts.buffers[0].bytes, 8 * 21);
  EXPECT_FALSE(own.at(layer(4, 21).bytes(), "b"));
  EXPECT_TRUE(said->doubted) << "the first one";
  int doubted = 0;
  for (int i = 0; i < 3000; ++i) doubted += own.at(layer(4, 23).bytes(), "a")->doubted;
  EXPECT_GE(doubted, 10);
  EXPECT_LT(doubted, 30) << "of a hundred calls less than one";
  made(25, 8 * 25 + 1);
  EXPECT_FALSE(own.at(layer(4, 21).bytes(), "a"));
  for (int64_t n = 10; n < 40; ++n) made(n, 8 * n);
  EXPECT_FALSE(own.at(layer(4, 21).bytes(), "a")) << "for good";
}

// Where another structure was planned between the sizes of one, neither is answered.
TEST(SizedPlans, TwoStructuresInTurnsAreAnsweredByPlanning) {
  SizedPlans own;
  PlanParts parts;
  for (int64_t n = 10; n < 50; ++n) {
    parts.num_inputs = n % 2 ? 1 : 2;
    own.made(layer(4, n).bytes(), "", parts);
    for (int64_t m = 11; m < n; ++m) EXPECT_FALSE(own.at(layer(4, m).bytes(), "") && (m - n) % 2) << m << " of " << n;
  }
}

// A threshold of a product of sizes: each side is answered as itself.
TEST(SizedPlans, StructuresBesideEachOtherAreAnsweredEachForItself) {
  SizedPlans own;
  PlanParts parts;
  Drawn drawn;
  int answers = 0;
  for (int i = 0; i < 400; ++i) {
    const auto [b, n] = drawn();
    const uint32_t is = b * n > 100 ? 1 : 2;
    if (const auto said = own.at(layer(b, n).bytes(), "")) {
      EXPECT_EQ(said->parts.num_inputs, is) << b << " " << n;
      ++answers;
      if (!said->doubted) continue;
    }
    parts.num_inputs = is;
    own.made(layer(b, n).bytes(), "", parts);
  }
  EXPECT_GT(answers, 200);
}

TEST(SizedPlans, OfManyStructuresNoneIsAnswered) {
  SizedPlans own;
  PlanParts parts;
  for (int64_t n = 10; n < 40; n += 2) own.made(layer(4, n).bytes(), "", parts);
  EXPECT_TRUE(own.at(layer(4, 21).bytes(), ""));
  for (uint32_t k = 1; k < 12; ++k) {
    parts.num_inputs = k;
    own.made(layer(4, 100 + k).bytes(), "", parts);
  }
  EXPECT_FALSE(own.at(layer(4, 21).bytes(), ""));
}

TEST(SizedPlans, WhatFollowsNoPolynomialIsPlanned) {
  SizedPlans own;
  PlanParts parts;
  parts.buffers.resize(1);
  for (int64_t n = 10; n < 50; ++n) {
    parts.buffers[0].bytes = (n + 15) / 16 * 16;
    own.made(layer(4, n).bytes(), "", parts);
  }
  for (int64_t n = 10; n < 50; ++n) EXPECT_FALSE(own.at(layer(4, n).bytes(), ""));
}

TEST(SizedPlans, DamagedBytesAreNobodys) {
  Learned its;
  const std::vector<uint8_t> whole = layer(4, 20).bytes();
  std::mt19937 gen(5);
  for (int i = 0; i < 3000; ++i) {
    std::vector<uint8_t> damaged = whole;
    if (i % 3 == 0) damaged.resize(gen() % damaged.size());
    else damaged[gen() % damaged.size()] ^= static_cast<uint8_t>(1 + gen() % 255);
    try {
      CompiledRegion::compile(damaged, its.backend, {}, &its.known, &its.sized);
    } catch (const kit::Error&) {
    }
  }
}

}  // namespace
}  // namespace keirin::codegen::test
