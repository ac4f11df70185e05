// SPDX-License-Identifier: Apache-2.0
//
// Steps that become one: which may, and that a plan with them computes the same, on a backend that runs them from the last to the first.
#include "plugins/codegen/plan/together.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/codegen/check.h"

namespace keirin::codegen::test {
namespace {

size_t steps_of(const Checked& c) {
  const std::string text = c.executable->describe();
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

// An optimiser's update: each parameter has its own kernels, and they are the same ones.
TEST(Together, AlikeKernelsAreOneStep) {
  RegionBuilder g;
  for (const int64_t n : {7, 30, 12, 3, 4}) g.momentum_step(n);
  InterpBackend apart, together;
  together.puts_together = true;
  const Checked before = check(g, apart), after = check(g, together);
  EXPECT_EQ(after.kernels(), before.kernels());
  EXPECT_GE(steps_of(before), 5u) << before.executable->describe();
  EXPECT_LE(steps_of(after), steps_of(before) / 4) << after.executable->describe();
}

// Whoever joins moves before all that stands between, but not before what it needs or would disturb.
TEST(Together, WhatStandsBetweenDecides) {
  using Steps = std::vector<std::vector<size_t>>;
  const auto step = [](std::string key, std::set<uint32_t> reads, std::set<uint32_t> written) {
    reads.insert(written.begin(), written.end());
    return Touch{std::move(key), reads, written};
  };
  const Touch a1 = step("a", {1}, {2}), a2 = step("a", {3}, {4}), a_reads_2 = step("a", {2}, {4}), a_writes_1 = step("a", {3}, {1}),
              a_writes_2 = step("a", {3}, {2}), b1 = step("b", {2}, {5}), b2 = step("b", {4}, {6}), reads_4 = step("", {4}, {7}),
              writes_3 = step("", {8}, {3});
  EXPECT_EQ(put_together(std::vector{a1, a2}), (Steps{{0, 1}}));
  EXPECT_EQ(put_together(std::vector{step("", {1}, {2}), step("", {3}, {4})}), (Steps{{0}, {1}}));
  EXPECT_EQ(put_together(std::vector{a1, a_reads_2}), (Steps{{0}, {1}}));
  EXPECT_EQ(put_together(std::vector{a1, a_writes_1}), (Steps{{0}, {1}})) << "it would overwrite what the first reads";
  EXPECT_EQ(put_together(std::vector{a1, a_writes_2}), (Steps{{0}, {1}}));
  EXPECT_EQ(put_together(std::vector{a1, b1, a2, b2}), (Steps{{0, 2}, {1, 3}})) << "b2 needs a2, which moved before b1";
  EXPECT_EQ(put_together(std::vector{a1, reads_4, a2}), (Steps{{0}, {1}, {2}})) << "what stands between reads what a2 overwrites";
  EXPECT_EQ(put_together(std::vector{a1, writes_3, a2}), (Steps{{0}, {1}, {2}})) << "and this one writes what a2 reads";
  EXPECT_EQ(put_together(std::vector{b1, a1, b2}), (Steps{{0, 2}, {1}})) << "nothing between, and nothing shared";
}

// `w` grows by what `x` was: its kernel, of the same structure, runs before the one that writes `x`, as its own step.
TEST(Together, WhatAnotherOverwritesIsReadBefore) {
  RegionBuilder g;
  const int x = g.input(kDType_f32, {6}), w = g.input(kDType_f32, {4}), z = g.input(kDType_f32, {6});
  g.output(g.binary(kOp_add, x, z), 0);
  g.output(g.binary(kOp_add, w, g.slice(x, 0, 0, 4)), 1);
  InterpBackend together;
  together.puts_together = true;
  const Checked c = check(g, together);
  EXPECT_EQ(steps_of(c), 2u) << c.executable->describe();
}

}  // namespace
}  // namespace keirin::codegen::test
