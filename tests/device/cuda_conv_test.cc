// SPDX-License-Identifier: Apache-2.0
//
// Convolutions by cuDNN on a real GPU against a plain loop in f64, with every epilogue the anchor takes, and what the large ones of
// ResNet-50 cost. Skips, with the reason, where there is no GPU or no cuDNN.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>

#include "cuda/cudnn.h"
#include "cuda/device.h"
#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "plugins/gpu/backend.h"
#include "plugins/gpu/choose.h"
#include "plugins/gpu/csr.h"
#include "plugins/gpu/conv.h"
#include "plugins/gpu/stem.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"
#include "tests/device/machine.h"
#include "tests/unit/cuda/case_runner.h"

namespace keirin::cuda {
namespace {

using namespace gpu;

using codegen::AnchorDesc;
using codegen::PostOp;
using codegen::Step;
using codegen::TensorDesc;
using Dims = std::vector<int64_t>;

int64_t count(const Dims& sizes) {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

// Strides of dense memory with axis 1 innermost, or row-major.
Dims dense(const Dims& sizes, bool channels_last) {
  Dims strides(sizes.size());
  int64_t step = 1;
  if (channels_last) strides[1] = 1, step = sizes[1];
  for (size_t d = sizes.size(); d-- > 0;) {
    if (channels_last && d == 1) continue;
    strides[d] = step, step *= sizes[d];
  }
  return strides;
}

struct Case {
  std::string name;
  Dims x, w;  // batch, channels, space; out, in / groups, kernel
  int64_t stride = 1, padding = 0, dilation = 1, groups = 1;
  bool bias = false, scale_shift = false, residual = false;
  uint32_t activation = 0;
  bool channels_last = true;
};

Dims result_sizes(const Case& c) {
  Dims y{c.x[0], c.w[0]};
  for (size_t d = 2; d < c.x.size(); ++d) y.push_back((c.x[d] + 2 * c.padding - c.dilation * (c.w[d] - 1) - 1) / c.stride + 1);
  return y;
}

// Buffers: x, w, y, bias, scale, shift, residual, workspace.
AnchorDesc anchor_of(const Case& c, uint8_t dtype) {
  auto tensor = [&](uint32_t buffer, const Dims& sizes, uint8_t type) {
    TensorDesc t;
    t.buffer = buffer, t.dtype = type, t.sizes = sizes, t.strides = dense(sizes, c.channels_last);
    return t;
  };
  AnchorDesc a;
  a.op = kit::kOp_conv;
  a.operands = {tensor(0, c.x, dtype), tensor(1, c.w, dtype), TensorDesc{}};
  if (c.bias) {
    a.operands[2].buffer = 3, a.operands[2].dtype = dtype;
    a.operands[2].sizes = {c.w[0]}, a.operands[2].strides = {1};
  }
  a.results = {tensor(2, result_sizes(c), dtype)};
  const size_t axes = c.x.size() - 2;
  a.stride.assign(axes, c.stride), a.padding.assign(axes, c.padding), a.dilation.assign(axes, c.dilation);
  a.groups = c.groups;
  auto per_channel = [&](uint32_t buffer) {
    TensorDesc t = tensor(buffer, a.results[0].sizes, kit::kDType_f32);
    t.strides.assign(t.sizes.size(), 0), t.strides[1] = 1;
    return t;
  };
  if (c.scale_shift) a.post_ops.push_back({kit::kOp_mul, per_channel(4)}), a.post_ops.push_back({kit::kOp_add, per_channel(5)});
  if (c.residual) a.post_ops.push_back({kit::kOp_add, tensor(6, a.results[0].sizes, dtype)});
  if (c.activation) a.post_ops.push_back({c.activation, {}});
  return a;
}

double activated(uint32_t op, double v) {
  switch (op) {
    case kit::kOp_relu: return std::max(v, 0.0);
    case kit::kOp_silu: return v / (1 + std::exp(-v));
    case kit::kOp_sigmoid: return 1 / (1 + std::exp(-v));
    case kit::kOp_tanh: return std::tanh(v);
    case kit::kOp_gelu: return 0.5 * v * (1 + std::erf(v / std::sqrt(2.0)));
    case kit::kOp_gelu_tanh: return 0.5 * v * (1 + std::tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
    default: return v;
  }
}

class CudaConv : public testing::Test {
 protected:
  void SetUp() override {
    if (!machine().context) GTEST_SKIP() << "no GPU to run on: " << machine().why_not;
    if (!cudnn_missing().empty()) GTEST_SKIP() << cudnn_missing();
    machine().gpu->driver->make_current(machine().context->handle());
  }
};

struct Data {
  std::vector<char> bytes;
  uint8_t dtype;
  double at(int64_t i) const { return test::read_element(bytes.data(), i, dtype).real; }
};

enum class As { kConv, kLinear, kStem };

void check_case(const Case& c, uint8_t dtype, As as = As::kConv) {
  std::mt19937 random(7);
  auto fill = [&](int64_t n, uint8_t type) {
    Data d{std::vector<char>(static_cast<size_t>(n * test::element_bytes(type))), type};
    for (int64_t i = 0; i < n; ++i) test::write_element(d.bytes.data(), i, type, std::normal_distribution<double>(0, 1)(random), 0);
    return d;
  };
  AnchorDesc a = anchor_of(c, dtype);
  const Dims sizes = a.results[0].sizes;
  const Data x = fill(count(c.x), dtype), w = fill(count(c.w), dtype), b = fill(c.w[0], dtype), scale = fill(c.w[0], kit::kDType_f32),
             shift = fill(c.w[0], kit::kDType_f32), residual = fill(count(sizes), dtype);
  std::unique_ptr<Step> step;
  if (as == As::kLinear) {
    const auto linear = conv_as_linear(a);
    ASSERT_TRUE(linear) << c.name;
    step = chosen_step(*linear, {});
  } else if (as == As::kStem) {
    const auto stem = stem_of(a, KRN_NUMERICS_DEFAULT);
    ASSERT_TRUE(stem) << c.name;
    step = make_stem(*stem, a, code_target(*machine().gpu, nullptr), cudnn(), true);
  } else {
    std::string why_not;
    const auto shares = conv_shares(a, KRN_NUMERICS_DEFAULT, &cudnn(), why_not);
    ASSERT_TRUE(shares) << c.name << " dtype " << int{dtype} << ": " << why_not;
    step = make_conv(a, *shares, cudnn(), code_target(*machine().gpu, nullptr), true);
  }
  const DeviceMemory dx(x.bytes), dw(w.bytes), dy(residual.bytes.size()), db(b.bytes), dscale(scale.bytes), dshift(shift.bytes),
      dresidual(residual.bytes), workspace(static_cast<size_t>(step->workspace_bytes()));
  std::vector<void*> buffers{dx.data(), dw.data(), dy.data(), db.data(), dscale.data(), dshift.data(), dresidual.data(), workspace.data()};
  if (step->workspace_bytes() > 0) step->set_workspace(7);
  ASSERT_EQ(run_step(*step, buffers), KRN_STATUS_ok) << c.name;
  const Data y{dy.get(residual.bytes.size()), dtype};
  // One spatial axis is two, the first of size 1.
  auto two = [](Dims d, int64_t fill_with) {
    if (d.size() == 3) d.insert(d.begin() + 2, fill_with);
    return d;
  };
  const Dims xs = two(c.x, 1), ws = two(c.w, 1), ys = two(sizes, 1), xt = two(a.operands[0].strides, 0), wt = two(a.operands[1].strides, 0),
             yt = two(a.results[0].strides, 0);
  const int64_t pad_h = c.x.size() == 3 ? 0 : c.padding, per_group_in = ws[1], per_group_out = ws[0] / c.groups;
  const double k = static_cast<double>(ws[1] * ws[2] * ws[3]);
  const double relative = dtype == kit::kDType_bf16 ? 1.0 / 100 : 1.0 / 500;  // without TF32 far less
  for (int64_t n = 0; n < ys[0]; ++n)
    for (int64_t o = 0; o < ys[1]; ++o)
      for (int64_t i = 0; i < ys[2]; ++i)
        for (int64_t j = 0; j < ys[3]; ++j) {
          double sum = 0;
          for (int64_t ic = 0; ic < per_group_in; ++ic)
            for (int64_t r = 0; r < ws[2]; ++r)
              for (int64_t s = 0; s < ws[3]; ++s) {
                const int64_t row = i * c.stride - pad_h + r * c.dilation, col = j * c.stride - c.padding + s * c.dilation;
                if (row < 0 || col < 0 || row >= xs[2] || col >= xs[3]) continue;
                const int64_t channel = o / per_group_out * per_group_in + ic;
                sum += x.at(n * xt[0] + channel * xt[1] + row * xt[2] + col * xt[3]) * w.at(o * wt[0] + ic * wt[1] + r * wt[2] + s * wt[3]);
              }
          const double before = std::fabs(sum);
          if (c.bias) sum += b.at(o);
          if (c.scale_shift) sum = sum * scale.at(o) + shift.at(o);
          const int64_t at = n * yt[0] + o * yt[1] + i * yt[2] + j * yt[3];
          if (c.residual) sum += residual.at(at);
          const double room = relative * (1 + std::fabs(sum) + (before + std::sqrt(k)) * (c.scale_shift ? 1 + std::fabs(scale.at(o)) : 1));
          ASSERT_NEAR(y.at(at), activated(c.activation, sum), room)
              << c.name << " dtype " << int{dtype} << " at " << n << " " << o << " " << i << " " << j;
        }
}

TEST_F(CudaConv, AgreesWithAPlainLoop) {
  const Case cases[] = {
      {"3x3", {2, 16, 9, 11}, {24, 16, 3, 3}, 1, 1},
      {"3x3 stride 2 bias", {2, 16, 9, 11}, {24, 16, 3, 3}, 2, 1, 1, 1, true},
      {"dilated", {2, 16, 12, 12}, {16, 16, 3, 3}, 1, 2, 2},
      {"groups", {2, 32, 8, 8}, {32, 8, 3, 3}, 1, 1, 1, 4},
      {"depthwise", {2, 32, 8, 8}, {32, 1, 3, 3}, 1, 1, 1, 32},
      {"one axis", {3, 16, 40}, {24, 16, 5}, 2, 2, 1, 1, true},
      {"stem", {2, 3, 21, 21}, {16, 3, 7, 7}, 2, 3},
      {"1x1", {2, 32, 7, 7}, {64, 32, 1, 1}},
      {"row-major", {2, 16, 9, 11}, {24, 16, 3, 3}, 1, 1, 1, 1, true, false, false, 0, false}};
  for (const Case& c : cases)
    for (uint8_t dtype : {kit::kDType_f32, kit::kDType_bf16, kit::kDType_f16}) {
      try {
        check_case(c, dtype);
      } catch (const kit::Error& error) {
        ADD_FAILURE() << c.name << " dtype " << int{dtype} << ": " << error.what();
      }
    }
}

TEST_F(CudaConv, Epilogues) {
  const Dims x{2, 32, 9, 11}, w{64, 32, 3, 3};
  const Case cases[] = {{"bias relu", x, w, 1, 1, 1, 1, true, false, false, kit::kOp_relu},
                        {"bias residual relu", x, w, 1, 1, 1, 1, true, false, true, kit::kOp_relu},
                        {"scale shift relu", x, w, 1, 1, 1, 1, false, true, false, kit::kOp_relu},
                        {"scale shift residual relu", x, w, 1, 1, 1, 1, false, true, true, kit::kOp_relu},
                        {"bias silu", x, w, 1, 1, 1, 1, true, false, false, kit::kOp_silu},
                        {"bias sigmoid", x, w, 1, 1, 1, 1, true, false, false, kit::kOp_sigmoid},
                        {"bias tanh", x, w, 1, 1, 1, 1, true, false, false, kit::kOp_tanh},
                        {"bias gelu", x, w, 1, 1, 1, 1, true, false, false, kit::kOp_gelu},
                        {"bias gelu_tanh", x, w, 1, 1, 1, 1, true, false, false, kit::kOp_gelu_tanh}};
  for (const Case& c : cases)
    for (uint8_t dtype : {kit::kDType_bf16, kit::kDType_f16, kit::kDType_f32}) {
      // What the library does not fuse is a kernel of its own: a refusal is a line to read, for 16 bits a failure.
      std::string why_not;
      if (!conv_shares(anchor_of(c, dtype), KRN_NUMERICS_DEFAULT, &cudnn(), why_not)) {
        std::printf("not fused: %s dtype %d: %s\n", c.name.c_str(), int{dtype}, why_not.c_str());
        const bool expected = dtype == kit::kDType_f32 || c.scale_shift || c.activation == kit::kOp_tanh;  // an f32 scale would be rounded
        EXPECT_TRUE(expected) << c.name << ": " << why_not;
        continue;
      }
      try {
        check_case(c, dtype);
      } catch (const kit::Error& error) {
        ADD_FAILURE() << c.name << " dtype " << int{dtype} << ": " << error.what();
      }
    }
}

TEST_F(CudaConv, OneByOneAsAProduct) {
  for (uint8_t dtype : {kit::kDType_bf16, kit::kDType_f16, kit::kDType_f32})
    check_case({"1x1", {2, 32, 7, 7}, {64, 32, 1, 1}, 1, 0, 1, 1, true, false, true, kit::kOp_relu}, dtype, As::kLinear);
}

TEST_F(CudaConv, Stems) {
  const Case cases[] = {{"7x7 / 2", {2, 3, 37, 45}, {64, 3, 7, 7}, 2, 3, 1, 1, true, false, false, kit::kOp_relu},
                        {"3x3 / 2", {3, 4, 20, 19}, {32, 4, 3, 3}, 2, 1},
                        {"patches", {2, 3, 32, 48}, {64, 3, 16, 16}, 16, 0, 1, 1, true},
                        {"7x7 / 4, residual", {2, 1, 40, 40}, {32, 1, 7, 7}, 4, 3, 1, 1, true, false, true, kit::kOp_relu}};
  for (const Case& c : cases)
    for (uint8_t dtype : {kit::kDType_bf16, kit::kDType_f16, kit::kDType_f32}) {
      try {
        check_case(c, dtype, As::kStem);
      } catch (const kit::Error& error) {
        ADD_FAILURE() << c.name << " dtype " << int{dtype} << ": " << error.what();
      }
    }
}

// U-Net's skip: the residual is what the kernel before writes, while x was there long ago. Without a fence the fused engine began
// to read it early, and half of such calls were wrong.
TEST_F(CudaConv, AResidualIsWaitedFor) {
  const Case before{"3x3", {4, 1280, 16, 16}, {1280, 1280, 3, 3}, 1, 1, 1, 1, true},
      skip{"1x1", {4, 640, 16, 16}, {1280, 640, 1, 1}, 1, 0, 1, 1, true, false, true};
  std::unique_ptr<Step> steps[2];
  std::vector<std::unique_ptr<DeviceMemory>> memory;
  auto drawn = [&](int64_t n) {
    std::mt19937 random(static_cast<unsigned>(memory.size()));
    std::vector<char> bytes(static_cast<size_t>(2 * n));
    for (int64_t i = 0; i < n; ++i)
      test::write_element(bytes.data(), i, kit::kDType_bf16, std::normal_distribution<double>(0, 1)(random), 0);
    return memory.emplace_back(std::make_unique<DeviceMemory>(bytes))->data();
  };
  std::vector<void*> buffers[2];
  for (int i = 0; i < 2; ++i) {
    const Case& c = i == 0 ? before : skip;
    const AnchorDesc conv = anchor_of(c, kit::kDType_bf16);
    std::string why_not;
    const auto shares = conv_shares(conv, KRN_NUMERICS_DEFAULT, &cudnn(), why_not);
    ASSERT_TRUE(shares) << why_not;
    steps[i] = make_conv(conv, *shares, cudnn(), code_target(*machine().gpu, nullptr), true);
    void* const x = drawn(count(c.x));
    void* const w = drawn(count(c.w));
    void* const y = drawn(count(result_sizes(c)));
    void* const bias = drawn(c.w[0]);
    void* const workspace = memory.emplace_back(std::make_unique<DeviceMemory>(static_cast<size_t>(steps[i]->workspace_bytes())))->data();
    buffers[i] = {x, w, y, bias, nullptr, nullptr, i == 0 ? nullptr : buffers[0][2], workspace};
    steps[i]->set_workspace(7);
  }
  const auto bytes = static_cast<size_t>(2 * count(result_sizes(skip)));
  std::vector<char> right;
  for (int round = 0; round < 20; ++round) {
    machine().driver->cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(buffers[0][2]), 0xff, bytes, nullptr);
    ASSERT_EQ(run_step(*steps[0], buffers[0]), KRN_STATUS_ok);
    if (round == 0) machine().driver->cuStreamSynchronize(nullptr);
    ASSERT_EQ(run_step(*steps[1], buffers[1]), KRN_STATUS_ok);
    std::vector<char> y(bytes);
    machine().driver->cuMemcpyDtoHAsync(y.data(), reinterpret_cast<CUdeviceptr>(buffers[1][2]), bytes, nullptr);
    machine().driver->cuStreamSynchronize(nullptr);
    if (round == 0) right = y;
    ASSERT_EQ(y, right) << "round " << round;
  }
}

TEST_F(CudaConv, EqualProblemsShareAPlan) {
  std::string why_not;
  const auto p = conv_problem(anchor_of({"3x3", {2, 16, 9, 11}, {24, 16, 3, 3}, 1, 1}, kit::kDType_bf16), KRN_NUMERICS_DEFAULT, why_not);
  ASSERT_TRUE(p) << why_not;
  EXPECT_EQ(cudnn().plan(*p), cudnn().plan(*p));
}

TEST_F(CudaConv, SpeedOfResNet50) {
  const Case cases[] = {{"stem 7x7", {128, 3, 224, 224}, {64, 3, 7, 7}, 2, 3, 1, 1, true, false, false, kit::kOp_relu},
                        {"56 1x1 64-64", {128, 64, 56, 56}, {64, 64, 1, 1}, 1, 0, 1, 1, true, false, false, kit::kOp_relu},
                        {"56 3x3 64-64", {128, 64, 56, 56}, {64, 64, 3, 3}, 1, 1, 1, 1, true, false, false, kit::kOp_relu},
                        {"56 1x1 64-256 residual", {128, 64, 56, 56}, {256, 64, 1, 1}, 1, 0, 1, 1, true, false, true, kit::kOp_relu},
                        {"28 3x3 128-128", {128, 128, 28, 28}, {128, 128, 3, 3}, 1, 1, 1, 1, true, false, false, kit::kOp_relu},
                        {"28 1x1 128-512 residual", {128, 128, 28, 28}, {512, 128, 1, 1}, 1, 0, 1, 1, true, false, true, kit::kOp_relu},
                        {"14 3x3 256-256", {128, 256, 14, 14}, {256, 256, 3, 3}, 1, 1, 1, 1, true, false, false, kit::kOp_relu},
                        {"14 1x1 256-1024 residual", {128, 256, 14, 14}, {1024, 256, 1, 1}, 1, 0, 1, 1, true, false, true, kit::kOp_relu}};
  for (const Case& c : cases) {
    const auto begin = std::chrono::steady_clock::now();
    std::string why_not;
    const auto p = conv_problem(anchor_of(c, kit::kDType_bf16), KRN_NUMERICS_DEFAULT, why_not);
    ASSERT_TRUE(p) << why_not;
    const bool supported = cudnn().supports(*p, why_not);
    const double asked = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (!supported) {
      std::printf("%-26s refused: %s\n", c.name.c_str(), why_not.c_str());
      continue;
    }
    const auto plan = cudnn().plan(*p);
    const double all = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::printf("%-26s %7.1f us, asked in %.1f ms, built in %.0f ms, workspace %.1f MB, %s\n", c.name.c_str(), plan->seconds() * 1e6,
                asked * 1e3, (all - asked) * 1e3, static_cast<double>(plan->workspace_bytes()) / 1e6, plan->name().c_str());
    std::printf("%-26s gets %s\n", "", chosen_step(anchor_of(c, kit::kDType_bf16), {})->describe().c_str());
  }
}

}  // namespace
}  // namespace keirin::cuda
