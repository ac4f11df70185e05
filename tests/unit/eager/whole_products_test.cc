// SPDX-License-Identifier: Apache-2.0
//
// Which products were rounded is told by what they answer: of operands as they are, and of operands of 10 bits, as a GPU's library makes
// them where it chooses to.
#include "core/eager/program/whole_products.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

namespace keirin {
namespace {

using torch::jit::Stack;
using Names = std::set<std::string, std::less<>>;

constexpr Tf32Settings kAll{true, true, true};

OperatorSite site_of(const char* name, const char* node) {
  return {c10::Dispatcher::singleton().findSchemaOrThrow(name, ""), Care::kNone, node, {}, {}};
}

at::Tensor rounded(const at::Tensor& t) { return t.contiguous().view(at::kInt).add(0x1000).bitwise_and(~0x1fff).view(at::kFloat); }

// The answers to the arguments, or to the rounded ones.
Stack answers(const OperatorSite& site, Stack stack, bool rounds) {
  for (c10::IValue& value : stack)
    if (rounds && value.isTensor() && value.toTensor().defined()) value = rounded(value.toTensor());
  site.call(stack);
  return stack;
}

Names found(const OperatorSite& site, const Stack& arguments, const Stack& results, const Tf32Settings& allowed = kAll) {
  Names names;
  WholeProducts products(allowed, names);
  if (products.watches(site, arguments)) products.look(site, arguments, results);
  return names;
}

Stack convolution() {
  const std::vector<int64_t> ones{1, 1}, none{0, 0};
  return {at::randn({2, 8, 9, 9}), at::randn({16, 8, 3, 3}), at::randn({16}), ones, ones, ones, false, none, int64_t{1}};
}

TEST(WholeProducts, AreToldFromRoundedOnes) {
  at::manual_seed(3);
  const OperatorSite mm = site_of("aten::mm", "mm"), conv = site_of("aten::convolution", "conv");
  for (const auto& [site, arguments] :
       {std::pair(mm, Stack{at::randn({40, 600}), at::randn({600, 30})}), std::pair(conv, convolution())}) {
    EXPECT_EQ(found(site, arguments, answers(site, arguments, false)), Names{site.node});
    EXPECT_EQ(found(site, arguments, answers(site, arguments, true)), Names{});
  }
}

// The libraries choose for each of the two by itself.
TEST(WholeProducts, TheGradientsOfAConvolutionAreTwo) {
  at::manual_seed(4);
  const OperatorSite site = site_of("aten::convolution_backward", "back");
  const std::vector<int64_t> ones{1, 1}, none{0, 0}, bias{16};
  const c10::List<bool> all{{true, true, true}}, of_weight{{false, true, false}};
  const auto with = [&](const c10::List<bool>& mask) {
    const Stack forward = convolution();
    return Stack{at::randn({2, 16, 9, 9}), forward[0], forward[1], bias, ones, ones, ones, false, none, int64_t{1}, mask};
  };
  Stack arguments = with(all);
  Stack own = answers(site, arguments, false), off = answers(site, arguments, true);
  EXPECT_TRUE(found(site, arguments, own).contains("back") && found(site, arguments, own).contains("back/1"));
  EXPECT_EQ(found(site, arguments, {off[0], own[1], off[2]}), Names{"back/1"});
  EXPECT_EQ(found(site, arguments, {own[0], off[1], off[2]}), Names{"back"});
  arguments = with(of_weight);
  EXPECT_EQ(found(site, arguments, answers(site, arguments, false)), Names{"back/1"}) << "by its place, though it is the only one";
}

TEST(WholeProducts, NothingIsSaidOfWhatCannotBeTold) {
  at::manual_seed(5);
  const OperatorSite mm = site_of("aten::mm", "mm");
  const auto expect_nothing = [](const OperatorSite& site, const Stack& arguments, const Tf32Settings& allowed = kAll) {
    EXPECT_EQ(found(site, arguments, answers(site, arguments, false), allowed), Names{});
  };
  const at::Tensor whole_numbers = at::randint(9, {8, 8}, at::kFloat), x = at::randn({8, 8});
  expect_nothing(mm, {whole_numbers, whole_numbers});             // 10 bits are enough for these
  expect_nothing(mm, {x, at::full({8, 8}, INFINITY)});
  expect_nothing(mm, {x.to(at::kDouble), x.to(at::kDouble)});     // nobody rounds these
  expect_nothing(mm, {x, x}, {true, false, true});                // nor these, with such settings
  expect_nothing(site_of("aten::convolution", "conv"), convolution(), {false, true, true});
  expect_nothing(site_of("aten::relu", "relu"), {x});
}

// Once for a form, whatever its elements; another stride is another form.
TEST(WholeProducts, CallsOfOneFormAreComparedOnce) {
  at::manual_seed(6);
  Names names;
  WholeProducts products(kAll, names);
  const auto look = [&](const char* node, const Stack& arguments, bool rounds) {
    const OperatorSite site = site_of("aten::mm", node);
    products.look(site, arguments, answers(site, arguments, rounds));
  };
  const at::Tensor x = at::randn({30, 30});
  look("first", {x, x}, false);
  look("again", {x + 1, x}, true);
  look("turned", {x.t(), x}, true);
  EXPECT_EQ(names, (Names{"again", "first"}));
}

}  // namespace
}  // namespace keirin
