// SPDX-License-Identifier: Apache-2.0
//
// What is done around the calls of some operators, whose answers would depend on how their operands lie in memory.
#include "core/eager/program/boxed_call.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "core/eager/at_tensor.h"
#include "core/eager/rows/call_table.h"
#include "core/eager/rows/graph_calls.h"

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

// An operator of one operand and constants, as a graph calls it where the operand lay in such strides.
at::Tensor opaque(const char* name, const at::Tensor& x, std::vector<c10::IValue> constants, Dims strides) {
  BoundCall bound{c10::Dispatcher::singleton().findSchemaOrThrow(name, ""), {{BoundArg::Kind::kName, {}, "x", false, {}}}};
  for (c10::IValue& value : constants) bound.args.push_back({BoundArg::Kind::kConstant, std::move(value), {}, false, {}});
  auto boxed = make_boxed_call(bound, [](const std::string&) -> Result<uint32_t> { return 0u; });
  EXPECT_TRUE(boxed.ok());
  auto table = std::make_shared<CallTable>();
  table->calls.push_back({std::move(*boxed), {}, {{}}, {std::move(strides)}});
  Graph graph;
  const Type type{DType::k_f32, x.sizes().vec(), x.strides().vec()};
  const OpId op = graph.add_op(OpCode::kOpaque, {graph.add_input(type, 0)}, {{AttrKey::k_aten, std::string(name)}}, {type});
  graph.ops[op].call = 0;
  auto call = GraphCalls(table).prepare(graph, op, {});
  EXPECT_TRUE(call.ok()) << call.status().text();
  const std::vector<TensorRef> operands = {from_at(x)};
  std::vector<TensorRef> results;
  const Status status = (*call)->run(operands, results);
  return status.ok() ? to_at(results[0]) : at::Tensor();
}

TEST(BoxedCall, AnOpaqueOperatorReadsWhatEagersDid) {
  at::manual_seed(3);
  const at::Tensor x = at::randn({6, 4}), turned = x.t().contiguous().t();
  ASSERT_FALSE(opaque("aten::_pdist_forward", turned, {2.0}, {}).defined()) << "LibTorch takes these strides now: another operator";
  const at::Tensor got = opaque("aten::_pdist_forward", turned, {2.0}, {4, 1});
  ASSERT_TRUE(got.defined());
  EXPECT_TRUE(at::equal(got, at::_pdist_forward(x, 2.0)));
  // Some results lie as the operands do.
  const at::Tensor image = at::randn({2, 3, 4, 5}), last = image.contiguous(at::MemoryFormat::ChannelsLast);
  const Dims rows = image.strides().vec();
  EXPECT_EQ(opaque("aten::relu", image.transpose(2, 3).contiguous().transpose(2, 3), {}, rows).strides(), image.strides());
  EXPECT_EQ(opaque("aten::relu", last, {}, rows).strides(), last.strides());
  EXPECT_EQ(opaque("aten::relu", last.to(at::kInt), {}, rows).strides(), image.strides()) << "indices are read as they were";
}

}  // namespace
}  // namespace keirin
