// SPDX-License-Identifier: Apache-2.0
//
// Weights of a plan's eager steps, laid out once: the same answers as with the weight as it stands, and no copies on other processors.
#include "core/eager/rows/laid_out.h"

#include <gtest/gtest.h>

#include "core/eager/at_tensor.h"
#include "core/ops/builder.h"

namespace keirin {
namespace {

Type type_of(const at::Tensor& tensor) { return {DType::k_f32, tensor.sizes().vec(), tensor.strides().vec()}; }

// One op over an input, a constant weight and a constant bias.
struct OneOp {
  OneOp(OpCode code, at::Tensor input, at::Tensor weight, at::Tensor bias, Attrs attrs = {}) : x(std::move(input)) {
    Builder build(graph);
    ValueIds operands = {graph.add_input(type_of(x), 0)};
    for (at::Tensor& constant : std::vector{std::move(weight), std::move(bias)}) {
      if (!constant.defined()) continue;
      operands.push_back(graph.add_constant(type_of(constant), static_cast<uint32_t>(constants.size()), ValueKind::kConstant));
      constants.push_back(from_at(std::move(constant)));
    }
    EXPECT_TRUE(build.emit1(code, operands, std::move(attrs)).ok());
  }

  // Null where the call fails; `bytes` of what it holds.
  at::Tensor run(const std::vector<TensorRef>& known, int64_t& bytes) const {
    const auto call = GraphCalls(nullptr).prepare(graph, 0, known);
    EXPECT_TRUE(call.ok()) << call.status().text();
    if (!call.ok()) return {};
    bytes = (*call)->constant_bytes();
    std::vector<TensorRef> operands = {from_at(x)}, results;
    operands.insert(operands.end(), constants.begin(), constants.end());
    const Status status = (*call)->run(operands, results);
    EXPECT_TRUE(status.ok()) << status.text();
    return status.ok() ? to_at(results[0]) : at::Tensor();
  }

  // Whether a layout was used.
  bool agrees() const {
    int64_t none = 0, bytes = 0;
    const at::Tensor want = run({}, none), got = run(constants, bytes);
    EXPECT_EQ(none, 0);
    EXPECT_EQ(got.sizes(), want.sizes());
    EXPECT_EQ(got.strides(), want.strides());
    EXPECT_LT((got - want).abs().max().item<double>(), 1e-4);
    return bytes > 0;
  }

  Graph graph;
  at::Tensor x;
  std::vector<TensorRef> constants;
};

Attrs conv_attrs(int64_t padding, int64_t stride, int64_t groups, bool transposed = false) {
  return {{AttrKey::k_stride, Dims{stride, stride}}, {AttrKey::k_padding, Dims{padding, padding}}, {AttrKey::k_dilation, Dims{1, 1}},
          {AttrKey::k_groups, groups}, {AttrKey::k_transposed, transposed}, {AttrKey::k_output_padding, Dims{0, 0}}};
}

class LaidOutWeight : public ::testing::Test {
 protected:
  void SetUp() override {
    at::manual_seed(1);
    probe_ = OneOp(OpCode::k_linear, at::randn({1, 8}), at::randn({4, 8}), {}).agrees();
  }
  bool probe_ = false;  // whether anything is laid out here
};

TEST_F(LaidOutWeight, ProductsAgree) {
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{64}, {1, 64}, {3, 64}, {1, 1, 64}, {2, 5, 64}, {200, 64}})
    for (const bool biased : {false, true})
      for (const bool turned : {false, true}) {  // as a transposed view
        const at::Tensor weight = turned ? at::randn({64, 48}).t() : at::randn({48, 64});
        EXPECT_EQ(OneOp(OpCode::k_linear, at::randn(sizes), weight, biased ? at::randn({48}) : at::Tensor()).agrees(), probe_);
      }
}

TEST_F(LaidOutWeight, ConvolutionsAgree) {
  const auto last = at::MemoryFormat::ChannelsLast;
  for (const int64_t batch : {1, 2})
    for (const int64_t kernel : {1, 3})
      for (const int64_t stride : {1, 2})
        for (const int64_t groups : {1, 2, 8})
          for (const bool biased : {false, true}) {
            const at::Tensor x = at::randn({batch, 8, 7, 9}).contiguous(last),
                             weight = at::randn({16, 8 / groups, kernel, kernel}).contiguous(last);
            EXPECT_EQ(
                OneOp(OpCode::k_conv, x, weight, biased ? at::randn({16}) : at::Tensor(), conv_attrs(kernel / 2, stride, groups)).agrees(),
                probe_);
          }
}

TEST_F(LaidOutWeight, OthersAreCalledAsTheyStand) {
  EXPECT_FALSE(OneOp(OpCode::k_conv, at::randn({1, 8, 7, 9}), at::randn({16, 8, 3, 3}), {}, conv_attrs(1, 1, 1)).agrees())
      << "not channels-last";
  EXPECT_FALSE(OneOp(OpCode::k_conv, at::randn({1, 8, 9}), at::randn({16, 8, 3}), {},
                     {{AttrKey::k_stride, Dims{1}},
                      {AttrKey::k_padding, Dims{1}},
                      {AttrKey::k_dilation, Dims{1}},
                      {AttrKey::k_groups, int64_t{1}},
                      {AttrKey::k_transposed, false},
                      {AttrKey::k_output_padding, Dims{0}}})
                   .agrees())
      << "one axis";
  EXPECT_FALSE(OneOp(OpCode::k_matmul, at::randn({4, 8}), at::randn({8, 4}), {}).agrees());
}

TEST_F(LaidOutWeight, NeedsValuesInTheirOwnDtype) {
  const OneOp op(OpCode::k_linear, at::randn({1, 64}), at::randn({48, 64}), {});
  EXPECT_EQ(static_cast<bool>(lay_out_weight(op.graph, 0, op.constants, {}).run), probe_);
  EXPECT_FALSE(lay_out_weight(op.graph, 0, {}, {}).run) << "values that nobody knows yet";
  EXPECT_FALSE(lay_out_weight(op.graph, 0, op.constants, {{}, DType::k_f64}).run) << "the referee";
}

}  // namespace
}  // namespace keirin
