// SPDX-License-Identifier: Apache-2.0
//
// What is done around the calls of some operators, whose answers would depend on how their operands lie in memory.
#include "core/eager/program/boxed_call.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace keirin {
namespace {

using Tensors = std::vector<at::Tensor>;

Tensors called(const char* name, torch::jit::Stack stack, bool with_care = true) {
  const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  call_operator(op, with_care ? care_of(op.schema()) : Care::kNone, stack);
  Tensors out;
  for (const c10::IValue& value : stack) out.push_back(value.toTensor());
  return out;
}

void expect_equal(const Tensors& got, const Tensors& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_LT((got[i] - want[i]).abs().max().item<double>(), 1e-9) << i;
}

// Each operand in turn lies otherwise than the rest.
TEST(BoxedCall, AGroupNormReadsImagesAsTheyLie) {
  at::manual_seed(1);
  const auto options = at::TensorOptions(at::kDouble);
  const int64_t n = 2, c = 6, h = 4, w = 5, groups = 3;
  const at::Tensor x = at::randn({n, c, h, w}, options), grad = at::randn_like(x);
  const at::Tensor weight = at::randn({c}, options), bias = at::randn({c}, options);
  const auto norm = [&](const at::Tensor& image, bool with_care = true) {
    return called("aten::native_group_norm", {image, weight, bias, n, c, h * w, groups, 1e-5}, with_care);
  };
  const Tensors plain = norm(x);
  const auto backward = [&](const Tensors& operands, bool with_care = true) {
    return called("aten::native_group_norm_backward",
                  {operands[0], operands[1], operands[2], operands[3], weight, n, c, h * w, groups, c10::List<bool>({true, true, true})},
                  with_care);
  };
  const Tensors operands{grad, x, plain[1], plain[2]};
  const Tensors want = backward(operands);
  const auto turned = [](const at::Tensor& t) { return t.transpose(-1, -2).contiguous().transpose(-1, -2); };
  const at::Tensor last = x.contiguous(at::MemoryFormat::ChannelsLast);
  bool matters = false;
  for (const at::Tensor& image : {last, turned(x)}) expect_equal(norm(image), plain);
  for (size_t i = 0; i < operands.size(); ++i) {
    Tensors other = operands;
    other[i] = turned(operands[i]);
    expect_equal(backward(other), want);
    if (i < 2) other[i] = operands[i].contiguous(at::MemoryFormat::ChannelsLast);
    expect_equal(backward(other), want);
    matters |= (backward(other, false)[0] - want[0]).abs().max().item<double>() > 1e-3;
  }
  EXPECT_TRUE(matters) << "LibTorch reads strides here now: the care may go";
}

TEST(BoxedCall, AttentionReadsRowsAsTheyLie) {
  at::manual_seed(2);
  const auto options = at::TensorOptions(at::kDouble);
  const auto turned = [](const at::Tensor& t) { return t.transpose(-1, -2).contiguous().transpose(-1, -2); };
  Tensors operands;
  for (int i = 0; i < 4; ++i) operands.push_back(at::randn({1, 2, 16, 8}, options));
  const auto attention = [](const Tensors& qkv, bool with_care = true) {
    return called("aten::_scaled_dot_product_flash_attention_for_cpu", {qkv[0], qkv[1], qkv[2], 0.0, false, c10::IValue(), c10::IValue()},
                  with_care);
  };
  const Tensors forward = attention(operands);
  operands.push_back(forward[0]);
  const auto backward = [&](const Tensors& all) {
    return called("aten::_scaled_dot_product_flash_attention_for_cpu_backward",
                  {all[3], all[0], all[1], all[2], all[4], forward[1], 0.0, false, c10::IValue(), c10::IValue()});
  };
  const Tensors gradients = backward(operands);
  bool matters = false;
  for (size_t i = 0; i < operands.size(); ++i) {
    Tensors other = operands;
    other[i] = turned(operands[i]);
    expect_equal(backward(other), gradients);
    if (i > 2) continue;
    expect_equal(attention(other), forward);
    matters |= !at::allclose(attention(other, false)[0], forward[0]);
  }
  EXPECT_TRUE(matters) << "LibTorch reads strides here now: the care may go";
}

}  // namespace
}  // namespace keirin
