// SPDX-License-Identifier: Apache-2.0
//
// What the convolution anchor makes of descriptions, without a device: shapes and layouts that cuDNN gets, what is refused and why,
// which epilogues are asked for, and when a 1x1 convolution is a product.
#include <gtest/gtest.h>

#include "cuda/device.h"
#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "plugins/gpu/backend.h"
#include "plugins/gpu/choose.h"
#include "plugins/gpu/csr.h"
#include "plugins/gpu/conv.h"
#include "plugins/gpu/product.h"
#include "plugins/kit/tables.h"

namespace keirin::cuda {
namespace {

using namespace gpu;

using codegen::AnchorDesc;
using codegen::PostOp;
using codegen::TensorDesc;
using Dims = std::vector<int64_t>;

TensorDesc tensor(uint8_t dtype, Dims sizes, Dims strides) {
  TensorDesc t;
  t.buffer = 0, t.dtype = dtype, t.sizes = std::move(sizes), t.strides = std::move(strides);
  return t;
}

// 3x3 or 1x1, [2, 8, 5, 7] to 16 channels.
AnchorDesc conv(uint8_t dtype, bool channels_last, int64_t kernel = 3) {
  auto dense = [&](const Dims& s) {
    return channels_last ? Dims{s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]} : Dims{s[1] * s[2] * s[3], s[2] * s[3], s[3], 1};
  };
  const Dims x{2, 8, 5, 7}, w{16, 8, kernel, kernel}, y{2, 16, 5, 7};
  AnchorDesc a;
  a.op = kit::kOp_conv;
  a.operands = {tensor(dtype, x, dense(x)), tensor(dtype, w, dense(w)), TensorDesc{}};
  a.results = {tensor(dtype, y, dense(y))};
  a.stride = {1, 1}, a.padding = {kernel / 2, kernel / 2}, a.dilation = {1, 1};
  return a;
}

PostOp with(const AnchorDesc& a, uint32_t op, uint8_t dtype, Dims strides) {
  return {op, tensor(dtype, a.results[0].sizes, std::move(strides))};
}

// On a device whose cache is too small for a residual to be found there.
bool takes(const AnchorDesc& a, const PostOp& post, int64_t cache_bytes = 4096) {
  Gpu gpu = imagine_gpu("sm_90");
  gpu.info.cache_bytes = cache_bytes;
  return post_op_taken(a, post, gpu, KRN_NUMERICS_DEFAULT, false);
}

std::string refusal(const AnchorDesc& a) {
  std::string why_not;
  EXPECT_FALSE(choose(a, imagine_gpu("sm_90"), KRN_NUMERICS_DEFAULT, false, why_not));
  return why_not;
}

TEST(CudaConvProblem, LayoutsAreTold) {
  std::string why_not;
  const auto last = conv_problem(conv(kit::kDType_bf16, true), KRN_NUMERICS_DEFAULT, why_not);
  ASSERT_TRUE(last) << why_not;
  EXPECT_EQ(last->x.strides, (Dims{280, 1, 56, 8}));
  const auto plain = conv_problem(conv(kit::kDType_f32, false), KRN_NUMERICS_DEFAULT, why_not);
  ASSERT_TRUE(plain) << why_not;
  EXPECT_EQ(plain->x.strides, (Dims{280, 35, 7, 1}));
  EXPECT_NE(last->key(), plain->key());
}

TEST(CudaConvProblem, AxesOfSizeOneFollowTheLayout) {
  AnchorDesc a = conv(kit::kDType_bf16, true, 1);
  a.operands[1].strides = {8, 1, 1, 1};  // a 1x1 weight is both; torch writes row-major strides
  std::string why_not;
  const auto p = conv_problem(a, KRN_NUMERICS_DEFAULT, why_not);
  ASSERT_TRUE(p) << why_not;
  EXPECT_EQ(p->w.strides, (Dims{8, 1, 8, 8}));
}

// An image of one channel lies in both orders: what comes out decides.
TEST(CudaConvProblem, AnImageOfOneChannelFollowsTheResult) {
  for (bool last : {true, false}) {
    AnchorDesc a = conv(kit::kDType_bf16, last);
    a.operands[0] = tensor(kit::kDType_bf16, {a.operands[0].sizes[0], 1, 5, 7}, {35, 35, 7, 1});
    a.operands[1] = tensor(kit::kDType_bf16, {a.operands[1].sizes[0], 1, 3, 3}, {9, 9, 3, 1});
    std::string why_not;
    const auto p = conv_problem(a, KRN_NUMERICS_DEFAULT, why_not);
    ASSERT_TRUE(p) << why_not;
    EXPECT_EQ(p->x.strides, last ? (Dims{35, 1, 7, 1}) : (Dims{35, 35, 7, 1}));
    EXPECT_EQ(p->w.strides, last ? (Dims{9, 1, 3, 1}) : (Dims{9, 9, 3, 1}));
  }
}

TEST(CudaConvProblem, OneAxisBecomesTwo) {
  AnchorDesc a;
  a.op = kit::kOp_conv;
  a.operands = {tensor(kit::kDType_f32, {2, 8, 40}, {320, 40, 1}), tensor(kit::kDType_f32, {16, 8, 5}, {40, 5, 1}), TensorDesc{}};
  a.results = {tensor(kit::kDType_f32, {2, 16, 40}, {640, 40, 1})};
  a.stride = {1}, a.padding = {2}, a.dilation = {1};
  std::string why_not;
  const auto p = conv_problem(a, KRN_NUMERICS_DEFAULT, why_not);
  ASSERT_TRUE(p) << why_not;
  EXPECT_EQ(p->x.sizes, (Dims{2, 8, 1, 40}));
  EXPECT_EQ(p->x.strides, (Dims{320, 40, 40, 1}));
  EXPECT_EQ(p->padding, (Dims{0, 2}));
  EXPECT_EQ(p->stride, (Dims{1, 1}));
}

// Operands and results are what they are to the convolution whose gradient is asked for.
TEST(CudaConvProblem, GradientsAreOfAConvolution) {
  std::string why_not;
  AnchorDesc turned = conv(kit::kDType_f32, true);
  turned.transposed = true;
  std::swap(turned.operands[0], turned.results[0]);  // [2, 16, 5, 7] to 8 channels by [16, 8, 3, 3]
  const auto of_input = conv_problem(turned, KRN_NUMERICS_DEFAULT, why_not);
  ASSERT_TRUE(of_input) << why_not;
  EXPECT_EQ(of_input->result, ConvProblem::kX);
  EXPECT_EQ(of_input->x.sizes, turned.results[0].sizes);
  EXPECT_EQ(of_input->y.sizes, turned.operands[0].sizes);
  AnchorDesc weight = conv(kit::kDType_f32, true);
  weight.op = kit::kOp_conv_grad_weight, weight.sizes = {3, 3};
  std::swap(weight.operands[1], weight.results[0]);
  weight.operands.pop_back();
  const auto of_weight = conv_problem(weight, KRN_NUMERICS_DEFAULT, why_not);
  ASSERT_TRUE(of_weight) << why_not;
  EXPECT_EQ(of_weight->result, ConvProblem::kW);
  EXPECT_EQ(of_weight->w.sizes, weight.results[0].sizes);
  EXPECT_EQ(of_weight->y.sizes, weight.operands[1].sizes);
  EXPECT_NE(of_weight->key(), of_input->key());
  EXPECT_FALSE(takes(weight, {kit::kOp_relu, {}}));
  // In the order of the plan's addresses.
  const auto tensors = conv_tensors(weight);
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[1].sizes, weight.results[0].sizes);
  EXPECT_EQ(conv_tensors(turned)[0].sizes, turned.results[0].sizes);
  // An end of x that no window begins at, and a tap that meets nothing of it, would hold no trace of what is fed.
  EXPECT_EQ(edge_cases(*of_input).size(), 5u);
  EXPECT_EQ(edge_cases(*of_weight).size(), 5u);
  auto strided = *of_input;
  strided.stride = {2, 2};
  EXPECT_EQ(edge_cases(strided).size(), 2u);
  auto far = *of_weight;
  far.stride = {5, 5};
  EXPECT_EQ(edge_cases(far).size(), 2u);
}

TEST(CudaConvProblem, Refusals) {
  EXPECT_EQ(refusal(conv(kit::kDType_f64, false)), "convolutions take f32, bf16 and f16 here");
  AnchorDesc mixed = conv(kit::kDType_bf16, true);
  mixed.operands[1].dtype = kit::kDType_f32;
  EXPECT_FALSE(refusal(mixed).empty());
}

TEST(CudaConvProblem, StrictMeansNoTf32) {
  std::string why_not;
  EXPECT_FALSE(conv_problem(conv(kit::kDType_f32, false), KRN_NUMERICS_STRICT, why_not)->tf32);
  EXPECT_FALSE(conv_problem(conv(kit::kDType_f32, false), KRN_NUMERICS_DEFAULT, why_not)->tf32);
  const Numerics as_eager(KRN_NUMERICS_DEFAULT, KRN_POLICY_TF32_CONVOLUTIONS), products(KRN_NUMERICS_DEFAULT, KRN_POLICY_TF32_PRODUCTS);
  EXPECT_TRUE(conv_problem(conv(kit::kDType_f32, false), as_eager, why_not)->tf32);
  EXPECT_FALSE(conv_problem(conv(kit::kDType_f32, false), products, why_not)->tf32);
  EXPECT_FALSE(conv_problem(conv(kit::kDType_f32, false), {KRN_NUMERICS_STRICT, KRN_POLICY_TF32_CONVOLUTIONS}, why_not)->tf32);
  EXPECT_TRUE(conv_problem(conv(kit::kDType_f32, false), KRN_NUMERICS_FAST, why_not)->tf32);
}

// What a library's plan is tried on: numbers of f32, f16 and bf16 that are what they are called, and what counts as right.
TEST(CudaConvProblem, PlansAreTriedOnLargeNumbersInfinitiesAndNan) {
  std::string why_not;
  AnchorDesc a = conv(kit::kDType_bf16, true);
  EXPECT_EQ(edge_cases(*conv_problem(a, KRN_NUMERICS_DEFAULT, why_not)).size(), 5u);
  a.post_ops = {{kit::kOp_relu, {}}};
  const auto after_relu = edge_cases(*conv_problem(a, KRN_NUMERICS_DEFAULT, why_not));
  EXPECT_EQ(after_relu.size(), 3u) << "what is negative becomes 0 there";
  for (const EdgeCase& edge : after_relu) EXPECT_NE(edge.value, EdgeCase::kInfinity);
  // Where a window may lie beside the image, zeros are right too: only numbers are tried. The image is 5 high.
  for (int64_t high : {5, 6, 7}) {
    AnchorDesc tall = conv(kit::kDType_bf16, true);
    tall.operands[1] = tensor(kit::kDType_bf16, {16, 8, high, 3}, {24 * high, 1, 24, 8});
    tall.padding = {2, 1};
    EXPECT_EQ(edge_cases(*conv_problem(tall, KRN_NUMERICS_DEFAULT, why_not)).size(), high == 5 ? 5u : 2u) << high;
  }
  struct Row {
    uint8_t dtype;
    uint32_t large, infinity, nan;  // elements
  };
  for (const Row& r : {Row{kit::kDType_f32, 0x46464646, 0x7f800000, 0x7fc00000}, Row{kit::kDType_f16, 0x6464, 0x7c00, 0x7e00},
                       Row{kit::kDType_bf16, 0x4646, 0x7f80, 0x7fc0}}) {
    const bool wide = r.dtype == kit::kDType_f32;
    const auto word = [&](uint32_t element) { return wide ? element : element << 16 | element; };
    EXPECT_EQ((EdgeCase{EdgeCase::kLarge, false, EdgeCase::kNoNan}.bits(r.dtype)), word(r.large));
    EXPECT_EQ((EdgeCase{EdgeCase::kInfinity, true, EdgeCase::kNotFinite}.bits(r.dtype)), word(r.infinity | (wide ? 0x80000000u : 0x8000u)));
    EXPECT_EQ((EdgeCase{EdgeCase::kNan, false, EdgeCase::kIsNan}.bits(r.dtype)), word(r.nan));
    const auto shown = [&](EdgeCase::Shows shows, uint32_t element) {
      return EdgeCase{EdgeCase::kNan, false, shows}.shown_by(element, r.dtype);
    };
    for (uint32_t number : {0u, r.large, r.infinity}) EXPECT_TRUE(shown(EdgeCase::kNoNan, number));
    EXPECT_FALSE(shown(EdgeCase::kNoNan, r.nan));
    for (uint32_t number : {r.nan, r.infinity}) EXPECT_TRUE(shown(EdgeCase::kNotFinite, number));
    EXPECT_FALSE(shown(EdgeCase::kNotFinite, r.large));
    EXPECT_TRUE(shown(EdgeCase::kIsNan, r.nan));
    for (uint32_t number : {0u, r.large, r.infinity}) EXPECT_FALSE(shown(EdgeCase::kIsNan, number));
  }
}

TEST(CudaConvProblem, Epilogues) {
  const AnchorDesc a = conv(kit::kDType_bf16, true);
  const Dims own = a.results[0].strides, per_channel{0, 1, 0, 0}, row_major{560, 35, 7, 1};
  EXPECT_TRUE(takes(a, with(a, kit::kOp_add, kit::kDType_bf16, own)));
  EXPECT_TRUE(takes(a, with(a, kit::kOp_mul, kit::kDType_bf16, per_channel)));
  EXPECT_FALSE(takes(a, with(a, kit::kOp_mul, kit::kDType_f32, per_channel))) << "engines round an f32 scale to 16 bits";
  EXPECT_FALSE(takes(a, with(a, kit::kOp_add, kit::kDType_bf16, row_major))) << "a residual in another layout";
  EXPECT_FALSE(takes(a, with(a, kit::kOp_add, kit::kDType_f32, own))) << "a residual in another dtype";
  EXPECT_FALSE(takes(a, with(a, kit::kOp_add, kit::kDType_bf16, {35, 0, 7, 1}))) << "broadcast along channels";
  EXPECT_TRUE(takes(a, {kit::kOp_silu, {}}));
  EXPECT_FALSE(takes(a, {kit::kOp_exp, {}}));
  AnchorDesc full = a;
  for (int i = 0; i < 5; ++i) full.post_ops.push_back({kit::kOp_relu, {}});
  EXPECT_FALSE(takes(full, {kit::kOp_relu, {}})) << "longer than is fused";
  std::string why_not;
  AnchorDesc scaled = a;
  scaled.post_ops = {
      with(a, kit::kOp_mul, kit::kDType_bf16, per_channel), with(a, kit::kOp_add, kit::kDType_bf16, own), {kit::kOp_relu, {}}};
  const auto p = conv_problem(scaled, KRN_NUMERICS_DEFAULT, why_not);
  ASSERT_TRUE(p) << why_not;
  ASSERT_EQ(p->stages.size(), 3u);
  EXPECT_EQ(p->stages[0].operand.sizes, (Dims{1, 16, 1, 1}));
  EXPECT_EQ(p->stages[1].operand.sizes, a.results[0].sizes);
}

TEST(CudaConvProblem, AResidualInTheCacheIsAddedNextDoor) {
  const AnchorDesc a = conv(kit::kDType_bf16, true);  // 2,240 bytes
  EXPECT_TRUE(takes(a, with(a, kit::kOp_add, kit::kDType_bf16, a.results[0].strides), 4 * 2240));
  EXPECT_FALSE(takes(a, with(a, kit::kOp_add, kit::kDType_bf16, a.results[0].strides), 4 * 2241));
  EXPECT_TRUE(takes(a, with(a, kit::kOp_add, kit::kDType_bf16, {0, 1, 0, 0}), 1 << 20)) << "one number for each channel";
}

TEST(CudaConvProblem, OneByOneIsAProduct) {
  AnchorDesc a = conv(kit::kDType_bf16, true, 1);
  a.post_ops = {with(a, kit::kOp_add, kit::kDType_bf16, a.results[0].strides), {kit::kOp_relu, {}}};
  const auto linear = conv_as_linear(a);
  ASSERT_TRUE(linear);
  EXPECT_EQ(linear->op, kit::kOp_linear);
  EXPECT_EQ(linear->operands[0].sizes, (Dims{70, 8}));
  EXPECT_EQ(linear->operands[1].sizes, (Dims{16, 8}));
  EXPECT_EQ(linear->results[0].sizes, (Dims{70, 16}));
  EXPECT_EQ(linear->post_ops[0].operand.sizes, (Dims{70, 16}));
  EXPECT_FALSE(conv_as_linear(conv(kit::kDType_bf16, true, 3)));
  EXPECT_FALSE(conv_as_linear(conv(kit::kDType_bf16, false, 1))) << "row-major";
  AnchorDesc strided = conv(kit::kDType_bf16, true, 1);
  strided.stride = {2, 2};
  EXPECT_FALSE(conv_as_linear(strided));
  AnchorDesc scaled = conv(kit::kDType_bf16, true, 1);
  scaled.post_ops = {with(scaled, kit::kOp_mul, kit::kDType_f32, {0, 1, 0, 0})};
  EXPECT_FALSE(conv_as_linear(scaled)) << "a scale that is wider than the result";
  scaled.post_ops = {{kit::kOp_silu, {}}};
  EXPECT_FALSE(product_takes_epilogue(*conv_as_linear(scaled)));
  scaled.post_ops = {with(scaled, kit::kOp_add, kit::kDType_bf16, scaled.results[0].strides), {kit::kOp_relu, {}}};
  EXPECT_TRUE(product_takes_epilogue(*conv_as_linear(scaled)));
}

// Squeeze and excitation: a sum for each channel, or where the weights are many, a kernel that streams them.
TEST(CudaConvProblem, OnePixelIsARow) {
  const auto pixel = [](int64_t images, int64_t from, int64_t to) {
    AnchorDesc a = conv(kit::kDType_f32, true, 1);
    a.operands[0] = tensor(kit::kDType_f32, {images, from, 1, 1}, {from, 1, 1, 1});
    a.operands[1] = tensor(kit::kDType_f32, {to, from, 1, 1}, {from, 1, 1, 1});
    a.operands[2] = tensor(kit::kDType_f32, {to}, {1});
    a.results = {tensor(kit::kDType_f32, {images, to, 1, 1}, {to, 1, 1, 1})};
    return a;
  };
  EXPECT_EQ(refusal(pixel(1, 1152, 48)), "a convolution of one pixel is a sum for each channel");
  EXPECT_EQ(refusal(pixel(64, 6, 144)), "a convolution of one pixel is a sum for each channel");
  AnchorDesc a = pixel(2, 2048, 512);
  std::string why_not;
  auto choice = choose(a, imagine_gpu("sm_90"), KRN_NUMERICS_DEFAULT, false, why_not);
  ASSERT_TRUE(choice) << why_not;
  ASSERT_EQ(choice->runner, Choice::kOwnKernel);
  EXPECT_EQ(choice->kernel->launches[0].symbol, "gemv");
  EXPECT_TRUE(takes(a, {kit::kOp_silu, {}}));
  choice = choose(pixel(3, 2048, 512), imagine_gpu("sm_90"), KRN_NUMERICS_DEFAULT, false, why_not);
  ASSERT_TRUE(choice) << why_not;
  EXPECT_EQ(choice->runner, Choice::kConvolutions);
}

}  // namespace
}  // namespace keirin::cuda
