// SPDX-License-Identifier: Apache-2.0
//
// Convolutions through MIOpen, here one on the host (fake_miopen.cc) that computes what it is told by its descriptors and refuses what does
// not fit together: layouts, groups, strides, padding, dilation, dtypes, what is fused and what runs behind it, workspace, the race, the
// choice that is remembered, and concurrent runs.
#include "rocm/miopen.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <random>
#include <thread>

#include "plugins/gpu/code_store.h"
#include "plugins/gpu/conv.h"
#include "plugins/kit/tables.h"
#include "tests/unit/cuda/host_driver.h"
#include "tests/unit/cpu/kernel_interpreter.h"

namespace keirin::test {
namespace {

using codegen::AnchorDesc;
using codegen::TensorDesc;
using Dims = std::vector<int64_t>;

const HostDriver& host() {
  static const auto* driver = new HostDriver;
  return *driver;
}

std::atomic<int>& counter(const char* name) {
  static void* library = dlopen(KEIRIN_FAKE_MIOPEN, RTLD_NOW);
  return *static_cast<std::atomic<int>*>(dlsym(library, name));
}

// `device` keeps what is remembered of one test from another's.
std::unique_ptr<gpu::PlanLibrary> open(const std::string& device) {
  return rocm::open_miopen({KEIRIN_FAKE_MIOPEN}, host(), [device] { return device; });
}

struct Case {
  std::string name;
  Dims x, w;
  Dims stride{1, 1}, padding{0, 0}, dilation{1, 1};
  int64_t groups = 1;
  bool last = false, bias = false, residual = false;
  uint32_t activation = 0;
  uint8_t dtype = kit::kDType_f32;
};

Dims dense(const Dims& sizes, bool last) {
  Dims strides(sizes.size());
  int64_t step = 1;
  if (last) strides[1] = 1, step = sizes[1];
  for (size_t d = sizes.size(); d-- > 0;)
    if (!last || d != 1) strides[d] = step, step *= sizes[d];
  return strides;
}

// Buffers: x, w, y, bias, residual, workspace.
AnchorDesc anchor_of(const Case& c) {
  const auto tensor = [&](uint32_t buffer, const Dims& sizes) {
    TensorDesc t;
    t.buffer = buffer, t.dtype = c.dtype, t.sizes = sizes, t.strides = dense(sizes, c.last);
    return t;
  };
  Dims y{c.x[0], c.w[0]};
  for (size_t d = 0; d < c.stride.size(); ++d)
    y.push_back((c.x[d + 2] + 2 * c.padding[d] - c.dilation[d] * (c.w[d + 2] - 1) - 1) / c.stride[d] + 1);
  AnchorDesc a;
  a.op = kit::kOp_conv;
  a.operands = {tensor(0, c.x), tensor(1, c.w), TensorDesc{}};
  if (c.bias) a.operands[2].buffer = 3, a.operands[2].dtype = c.dtype, a.operands[2].sizes = {c.w[0]}, a.operands[2].strides = {1};
  a.results = {tensor(2, y)};
  a.stride = c.stride, a.padding = c.padding, a.dilation = c.dilation, a.groups = c.groups;
  if (c.residual) a.post_ops.push_back({kit::kOp_add, tensor(4, y)});
  if (c.activation) a.post_ops.push_back({c.activation, {}});
  return a;
}

int64_t count(const Dims& sizes) {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

std::unique_ptr<codegen::Step> make(const gpu::PlanLibrary& library, const AnchorDesc& anchor, double* seconds = nullptr) {
  static const gpu::Gpu gpu = host_gpu(host());
  std::string why_not;
  const auto shares = gpu::conv_shares(anchor, {}, &library, why_not);
  if (!shares) throw std::runtime_error(why_not);
  auto step = gpu::make_conv(anchor, *shares, library, gpu::code_target(gpu, nullptr), true, seconds);
  step->set_workspace(5);
  return step;
}

// Runs a step on drawn numbers and says how far it is from a plain loop, over what its dtype may be off by.
double error_of(const codegen::Step& step, const Case& c, uint32_t seed = 3, int64_t shift = 0) {
  const AnchorDesc a = anchor_of(c);
  const Dims& ys = a.results[0].sizes;
  std::mt19937 random(seed);
  const int64_t size = element_bytes(c.dtype);
  const auto fill = [&](int64_t n) {
    std::vector<char> out(static_cast<size_t>((n + 16) * size));
    for (int64_t i = 0; i < n + 16; ++i) write_element(out.data(), i, c.dtype, std::normal_distribution<double>(0, 1)(random), 0);
    return out;
  };
  std::vector<char> x = fill(count(c.x)), w = fill(count(c.w)), y = fill(count(ys)), bias = fill(c.w[0]), residual = fill(count(ys)),
                    workspace(static_cast<size_t>(step.workspace_bytes()) + 16);
  char* const from = x.data() + shift * size;
  std::vector<void*> buffers{from, w.data(), y.data(), bias.data(), residual.data(), workspace.data()};
  krn_run run{};
  codegen::RunContext context;
  std::vector<std::shared_ptr<const void>> keep;
  context.buffers = buffers.data(), context.keep = &keep, context.run = &run;
  if (step.run(context) != KRN_STATUS_ok) return 1e9;
  const auto two = [](Dims d, int64_t with) {
    if (d.size() == 3) d.insert(d.begin() + 2, with);
    return d;
  };
  const Dims xs = two(c.x, 1), ws = two(c.w, 1), yn = two(ys, 1), xt = two(a.operands[0].strides, 0), wt = two(a.operands[1].strides, 0),
             yt = two(a.results[0].strides, 0);
  const auto axes = [](Dims d, int64_t with) {
    if (d.size() == 1) d.insert(d.begin(), with);
    return d;
  };
  const Dims stride = axes(c.stride, 1), padding = axes(c.padding, 0), dilation = axes(c.dilation, 1);
  double worst = 0;
  for (int64_t n = 0; n < yn[0]; ++n)
    for (int64_t o = 0; o < yn[1]; ++o)
      for (int64_t i = 0; i < yn[2]; ++i)
        for (int64_t j = 0; j < yn[3]; ++j) {
          double sum = 0;
          for (int64_t k = 0; k < ws[1]; ++k)
            for (int64_t r = 0; r < ws[2]; ++r)
              for (int64_t s = 0; s < ws[3]; ++s) {
                const int64_t row = i * stride[0] - padding[0] + r * dilation[0], column = j * stride[1] - padding[1] + s * dilation[1];
                if (row < 0 || column < 0 || row >= xs[2] || column >= xs[3]) continue;
                const int64_t channel = o / (ws[0] / c.groups) * ws[1] + k;
                sum += read_element(from, n * xt[0] + channel * xt[1] + row * xt[2] + column * xt[3], c.dtype).real *
                       read_element(w.data(), o * wt[0] + k * wt[1] + r * wt[2] + s * wt[3], c.dtype).real;
              }
          double room = std::fabs(sum) + 1;
          if (c.bias) sum += read_element(bias.data(), o, c.dtype).real;
          const int64_t at = n * yt[0] + o * yt[1] + i * yt[2] + j * yt[3];
          if (c.residual) sum += read_element(residual.data(), at, c.dtype).real;
          if (c.activation == kit::kOp_relu) sum = std::max(sum, 0.0);
          if (c.activation == kit::kOp_tanh) sum = std::tanh(sum);
          if (c.activation == kit::kOp_sigmoid) sum = 1 / (1 + std::exp(-sum));
          if (c.activation == kit::kOp_silu) sum = sum / (1 + std::exp(-sum));
          const double unit = c.dtype == kit::kDType_f32 ? 1e-6 : c.dtype == kit::kDType_f16 ? 1e-3 : 8e-3;
          worst = std::max(worst, std::fabs(read_element(y.data(), at, c.dtype).real - sum) / (unit * (room + std::fabs(sum))));
        }
  return worst;
}

class Miopen : public testing::Test {
 protected:
  Miopen() {
    counter("fake_miopen_fuses") = 2;
    for (const char* name :
         {"fake_miopen_asked", "fake_miopen_ran", "fake_miopen_fused", "fake_miopen_slip", "fake_miopen_wrong"})
      counter(name) = 0;
  }
  ~Miopen() override { EXPECT_EQ(counter("fake_miopen_wrong"), 0) << "calls that the fake does not understand"; }
};

TEST_F(Miopen, Agrees) {
  const Case shapes[] = {{"3x3", {2, 6, 9, 11}, {8, 6, 3, 3}, {1, 1}, {1, 1}},
                         {"strides and padding of their own", {2, 6, 9, 11}, {8, 6, 3, 5}, {2, 3}, {1, 2}},
                         {"dilated", {1, 4, 12, 13}, {6, 4, 3, 3}, {1, 1}, {2, 1}, {2, 3}},
                         {"groups", {2, 12, 6, 5}, {8, 3, 3, 3}, {1, 1}, {1, 1}, {1, 1}, 4},
                         {"one axis", {3, 8, 20}, {6, 8, 5}, {2}, {2}, {1}},
                         {"1x1", {2, 8, 4, 3}, {6, 8, 1, 1}},
                         {"one channel", {2, 1, 8, 9}, {4, 1, 3, 3}}};
  const auto library = open("agrees");
  int tried = 0;
  for (Case c : shapes)
    for (bool last : {false, true})
      for (uint8_t dtype : {kit::kDType_f32, kit::kDType_bf16, kit::kDType_f16})
        for (bool bias : {false, true})
          for (uint32_t activation : {0u, uint32_t{kit::kOp_relu}, uint32_t{kit::kOp_tanh}, uint32_t{kit::kOp_sigmoid}}) {
            c.last = last, c.dtype = dtype, c.bias = bias, c.activation = activation;
            SCOPED_TRACE(c.name + (last ? " last" : "") + " dtype " + std::to_string(dtype) + " bias " +
                         std::to_string(bias) + " op " + std::to_string(activation));
            const auto step = make(*library, anchor_of(c));
            EXPECT_LT(error_of(*step, c), 1) << step->describe();
            ++tried;
          }
  EXPECT_EQ(tried, 7 * 2 * 3 * 2 * 4);
  EXPECT_GT(counter("fake_miopen_fused"), 0);
}

// What is not fused follows in a kernel of its own where there is a bias, and else next door.
TEST_F(Miopen, WhatIsNotFusedFollows) {
  std::string why_not;
  Case c{"3x3", {2, 6, 9, 11}, {8, 6, 3, 3}, {1, 1}, {1, 1}};
  for (int fuses : {0, 1, 2}) {
    counter("fake_miopen_fuses") = fuses;
    const auto library = open("follows " + std::to_string(fuses));
    const auto taken = [&](bool bias, bool residual, uint32_t activation) {
      c.bias = bias, c.residual = residual, c.activation = activation;
      return gpu::conv_shares(anchor_of(c), {}, library.get(), why_not).has_value();
    };
    EXPECT_TRUE(taken(true, false, 0));
    EXPECT_EQ(taken(false, false, kit::kOp_relu), fuses == 2);
    EXPECT_EQ(taken(true, false, kit::kOp_relu), fuses != 1) << "where the bias is fused, the kernel next door does the rest";
    EXPECT_EQ(taken(true, true, kit::kOp_silu), fuses == 0);
  }
  counter("fake_miopen_fuses") = 0;
  const auto library = open("follows 0");
  for (bool last : {false, true})
    for (uint8_t dtype : {kit::kDType_f32, kit::kDType_bf16}) {
      c = {"5x3", {2, 6, 9, 31}, {40, 6, 5, 3}, {1, 1}, {2, 1}, {1, 1}, 1, last, true, true, kit::kOp_silu, dtype};  // more than one block
      const auto step = make(*library, anchor_of(c));
      EXPECT_NE(step->describe().find("bias +2"), std::string::npos) << step->describe();
      EXPECT_LT(error_of(*step, c), 1) << step->describe();
    }
  EXPECT_EQ(counter("fake_miopen_fused"), 0);
}

// Winograd's and the one of a gigabyte are not tried; of the others the first that is right; in the next process it is made by its name.
TEST_F(Miopen, SolutionsAreRacedAndRemembered) {
  const Case c{"3x3", {1, 4, 7, 7}, {4, 4, 3, 3}, {1, 1}, {1, 1}};
  counter("fake_miopen_slip") = 11;
  double seconds = 0;
  const auto step = make(*open("races"), anchor_of(c), &seconds);
  EXPECT_NE(step->describe().find("solution-12"), std::string::npos) << "11 is wrong for what is not finite: " << step->describe();
  EXPECT_EQ(seconds, 0.25e-3);
  const int asked = counter("fake_miopen_asked");
  EXPECT_GT(asked, 0);
  counter("fake_miopen_ran") = 0;
  const auto again = make(*open("races"), anchor_of(c), &seconds);
  EXPECT_EQ(again->describe(), step->describe());
  EXPECT_EQ(seconds, 0.25e-3);
  EXPECT_EQ(counter("fake_miopen_asked"), asked) << "neither whether there is one nor which";
  EXPECT_EQ(counter("fake_miopen_ran"), 0) << "nor is it timed";
  EXPECT_LT(error_of(*again, c), 1);
  EXPECT_EQ(counter("fake_miopen_last"), 12);
  counter("fake_miopen_slip") = 0;
  EXPECT_NE(make(*open("another kind of device"), anchor_of(c))->describe().find("solution-11"), std::string::npos);
}

TEST_F(Miopen, MemoryIsItsOwn) {
  const Case c{"3x3", {1, 4, 7, 7}, {4, 4, 3, 3}, {1, 1}, {1, 1}};
  const auto step = make(*open("memory"), anchor_of(c));
  EXPECT_EQ(step->workspace_bytes(), 256) << step->describe();
  EXPECT_LT(error_of(*step, c), 1);
  EXPECT_LT(error_of(*step, c, 5, 1), 1) << "an image between words is copied";
  EXPECT_TRUE(host().memory.empty()) << "what was timed with is given back";
}

TEST_F(Miopen, RunsMayOverlap) {
  const Case plain{"3x3", {1, 4, 7, 7}, {4, 4, 3, 3}, {1, 1}, {1, 1}};
  Case fused = plain;
  fused.bias = true, fused.activation = kit::kOp_relu;
  const auto library = open("overlap");
  const auto one = make(*library, anchor_of(plain)), other = make(*library, anchor_of(fused));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (uint32_t turn = 0; turn < 30; ++turn)
        if (error_of(t % 2 ? *one : *other, t % 2 ? plain : fused, 100 * t + turn) >= 1) ++wrong;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(Miopen, WhatItIsNotAskedFor) {
  const auto library = open("refusals");
  std::string why_not;
  AnchorDesc gaps = anchor_of({"3x3", {2, 6, 9, 11}, {8, 6, 3, 3}});
  gaps.operands[0].strides[0] *= 2;
  EXPECT_FALSE(gpu::conv_shares(gaps, {}, library.get(), why_not));
  EXPECT_EQ(why_not, "MIOpen takes tensors without gaps, all in one order");
  AnchorDesc mixed = anchor_of({"3x3", {2, 6, 9, 11}, {8, 6, 3, 3}});
  mixed.results[0].strides = dense(mixed.results[0].sizes, true);
  EXPECT_FALSE(gpu::conv_shares(mixed, {}, library.get(), why_not));
  EXPECT_EQ(counter("fake_miopen_asked"), 0);
  EXPECT_FALSE(library->supports(gpu::HeadsProblem{}, why_not));
  const auto none = rocm::open_miopen({"libMIOpen_of_another_name.so"}, host(), [] { return std::string(); });
  EXPECT_FALSE(gpu::conv_shares(anchor_of({"3x3", {2, 6, 9, 11}, {8, 6, 3, 3}}), {}, none.get(), why_not));
  EXPECT_TRUE(why_not.starts_with("no MIOpen: ") && why_not.ends_with("; install ROCm's miopen-hip")) << why_not;
  EXPECT_EQ(why_not.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace keirin::test
