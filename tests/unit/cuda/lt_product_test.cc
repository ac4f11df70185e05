// SPDX-License-Identifier: Apache-2.0
//
// Products through a library that proposes algorithms, here one on the host (fake_lt.cc) whose numbers are nobody else's: with
// descriptors that may be copied and operands at multiples of 16 bytes, and with neither.
#include "plugins/gpu/lt_product.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <random>
#include <thread>

#include "plugins/kit/tables.h"
#include "tests/unit/cuda/host_driver.h"

namespace keirin::gpu {
namespace {

using codegen::AnchorDesc;
using codegen::PostOp;
using codegen::TensorDesc;

const Driver& host() {
  static const auto* driver = new test::HostDriver;
  return *driver;
}
std::string version_of(void*, lt::Handle, std::string&) { return "1"; }

lt::Vendor vendor() {
  return {.name = "fakelt",
          .prefix = "fakeLt",
          .files = {"libfake_lt_of_another_name.so", KEIRIN_FAKE_LT},
          .how_to_get = "build it",
          .types = {.f32 = 5, .f64 = 6, .f16 = 7, .bf16 = 8},
          .sums = {.f32 = 15, .tf32 = 15, .f64 = 16},
          .as_is = 21,
          .transposed = 22,
          .transpose_a = 31,
          .transpose_b = 32,
          .epilogue = 33,
          .bias_address = 34,
          .bias_type = 35,
          .batch_count = 41,
          .batch_stride = 42,
          .most_workspace = 51,
          .least_alignment = 52,
          .algo_bytes = 8,
          .desc_bytes = 40,
          .takes_all = true,
          .unsupported = 9,
          .version = version_of,
          .driver = host};
}
// Another version as well: choices of the one are not the other's.
lt::Vendor bare_vendor() {
  lt::Vendor out = vendor();
  out.desc_bytes = 0;
  out.least_alignment = -1;
  out.takes_all = false;
  out.version = [](void*, lt::Handle, std::string&) { return std::string("2"); };
  return out;
}

std::atomic<int>& counter(const char* name) {
  static void* library = dlopen(KEIRIN_FAKE_LT, RTLD_NOW);
  return *static_cast<std::atomic<int>*>(dlsym(library, name));
}

TensorDesc dense(uint32_t buffer, uint8_t dtype, std::vector<int64_t> sizes) {
  TensorDesc t;
  t.buffer = buffer, t.dtype = dtype, t.strides.assign(sizes.size(), 1), t.sizes = std::move(sizes);
  for (size_t i = t.sizes.size() - 1; i-- > 0;) t.strides[i] = t.strides[i + 1] * t.sizes[i + 1];
  return t;
}

// x [batch, m, k] times w: [n, k] with a bias if linear, else [batch, k, n]. Buffers: x, w, bias, residual, y, workspace.
struct Problem {
  bool linear = true, residual = false;
  uint32_t activation = 0;
  int64_t batch = 1, m = 7, k = 12, n = 9;
  uint8_t dtype = kit::kDType_f32;
};

AnchorDesc anchor_of(const Problem& p) {
  AnchorDesc a;
  a.op = p.linear ? kit::kOp_linear : kit::kOp_matmul;
  if (p.linear) a.operands = {dense(0, p.dtype, {p.m, p.k}), dense(1, p.dtype, {p.n, p.k}), dense(2, p.dtype, {p.n})};
  else a.operands = {dense(0, p.dtype, {p.batch, p.m, p.k}), dense(1, p.dtype, {p.batch, p.k, p.n})};
  a.results = {p.linear ? dense(4, p.dtype, {p.m, p.n}) : dense(4, p.dtype, {p.batch, p.m, p.n})};
  if (p.residual) a.post_ops.push_back({kit::kOp_add, dense(3, p.dtype, a.results[0].sizes)});
  if (p.activation) a.post_ops.push_back({p.activation, {}});
  return a;
}

std::unique_ptr<codegen::Step> make(const LtProducts& library, const AnchorDesc& anchor, Pick pick = Pick::kFirst) {
  Gpu gpu = test::host_gpu(static_cast<const test::HostDriver&>(host()));
  gpu.products = &library;
  auto step = make_product(anchor, gpu, code_target(gpu, nullptr), true, false, pick);
  step->set_workspace(5);
  return step;
}

template <class T>
struct Data {
  std::vector<T> x, w, bias, residual, y, want;
  std::vector<char> workspace = std::vector<char>(1 << 12);

  explicit Data(const Problem& p, uint32_t seed = 3) {
    std::mt19937 random(seed);
    const auto fill = [&](int64_t n) {
      std::vector<T> out(static_cast<size_t>(n) + 4);
      for (T& v : out) v = static_cast<T>(std::normal_distribution<double>(0, 1)(random));
      return out;
    };
    x = fill(p.batch * p.m * p.k), w = fill(p.batch * p.k * p.n), bias = fill(p.n), residual = fill(p.batch * p.m * p.n),
    y = fill(p.batch * p.m * p.n);
    for (int64_t i = 0; i < p.batch * p.m * p.n; ++i) {
      const int64_t batch = i / (p.m * p.n), row = i / p.n % p.m, column = i % p.n;
      double sum = p.linear ? bias[column] : 0;
      for (int64_t j = 0; j < p.k; ++j)
        sum += static_cast<double>(x[(batch * p.m + row) * p.k + j]) * w[p.linear ? column * p.k + j : (batch * p.k + j) * p.n + column];
      if (p.residual) sum += residual[i];
      if (p.activation == kit::kOp_relu) sum = std::max(sum, 0.0);
      if (p.activation == kit::kOp_gelu_tanh) sum = 0.5 * sum * (1 + std::tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
      want.push_back(static_cast<T>(sum));
    }
  }
  krn_code run(const codegen::Step& step) {
    std::vector<void*> buffers{x.data(), w.data(), bias.data(), residual.data(), y.data(), workspace.data()};
    return run_at(step, buffers);
  }
  static krn_code run_at(const codegen::Step& step, std::vector<void*>& buffers) {
    krn_run run{};
    codegen::RunContext context;
    std::vector<std::shared_ptr<const void>> keep;
    context.buffers = buffers.data(), context.keep = &keep, context.run = &run;
    return step.run(context);
  }
  double error() const {
    double worst = 0;
    for (size_t i = 0; i < want.size(); ++i) worst = std::max(worst, std::fabs(static_cast<double>(want[i]) - y[i]));
    return worst;
  }
};

class LtProduct : public testing::TestWithParam<bool> {
 protected:
  LtProduct() : vendor_(GetParam() ? bare_vendor() : vendor()), library_(vendor_) {
    counter("fake_lt_proposals") = 3;
    counter("fake_lt_refused_type") = 0;
  }
  const lt::Vendor vendor_;
  const LtProducts library_;
};

TEST_P(LtProduct, Agrees) {
  for (uint8_t dtype : {kit::kDType_f32, kit::kDType_f64})
    for (bool residual : {false, true})
      for (uint32_t activation : {0u, uint32_t{kit::kOp_relu}, uint32_t{kit::kOp_gelu_tanh}})
        for (bool linear : {true, false}) {
          const Problem p{linear, residual, activation, linear ? 1 : 3, 7, 12, 9, dtype};
          if (dtype == kit::kDType_f64 && !product_takes_epilogue(anchor_of(p))) continue;  // in f32 a kernel behind it
          const auto step = make(library_, anchor_of(p));
          SCOPED_TRACE(step->describe());
          Data<float> data(p);
          Data<double> wide(p);
          const bool f32 = dtype == kit::kDType_f32;
          ASSERT_EQ(f32 ? data.run(*step) : wide.run(*step), KRN_STATUS_ok);
          EXPECT_LT(f32 ? data.error() : wide.error(), f32 ? 1e-5 : 1e-12);
        }
}

TEST_P(LtProduct, AlgorithmsAreRacedOnce) {
  const AnchorDesc anchor = anchor_of({.m = 11});
  std::atomic<int>& multiplied = counter("fake_lt_multiplied");
  multiplied = 0;
  const auto raced = make(library_, anchor, Pick::kFastest);
  EXPECT_EQ(multiplied, 3 * 4) << "each of three to load its code and then three times";
  EXPECT_NE(raced->describe().find("guess 1 of 3 250"), std::string::npos) << raced->describe();
  multiplied = 0;
  EXPECT_EQ(make(library_, anchor, Pick::kFastest)->describe(), raced->describe());
  EXPECT_EQ(multiplied, 0) << "the choice is remembered";
  EXPECT_EQ(make(library_, anchor_of({.m = 13}))->describe(), "fakelt 1x[13x12]x9 first guess");
  EXPECT_EQ(multiplied, 0) << "not raced: the first proposal";
}

// Sizes less than an eighth apart, and multiples of the same powers of two.
TEST_P(LtProduct, ACallThatWaitsGetsWhatSuchSizesHave) {
  std::atomic<int>& asked = counter("fake_lt_asked");
  const auto of = [&](int64_t m, Pick pick) {
    const Problem p{.m = m, .k = 24, .n = 24};
    const auto step = make(library_, anchor_of(p), pick);
    Data<float> data(p);
    EXPECT_EQ(data.run(*step), KRN_STATUS_ok);
    EXPECT_LT(data.error(), 1e-4);
    return step->describe().substr(step->describe().find(']') + 5);
  };
  asked = 0;
  EXPECT_EQ(of(130, Pick::kLikeOthers), "first guess") << "nobody has one";
  EXPECT_EQ(of(134, Pick::kLikeOthers), "as such sizes have");
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(of(131, Pick::kLikeOthers), "first guess") << "odd";
  EXPECT_EQ(of(150, Pick::kLikeOthers), "first guess") << "larger";
  EXPECT_EQ(of(138, Pick::kFirst), "first guess") << "as in every process";
  EXPECT_EQ(asked, 4);
  EXPECT_EQ(of(258, Pick::kFastest).find("guess 1 of 3"), 0u);
  asked = 0;
  EXPECT_EQ(of(262, Pick::kLikeOthers), "as such sizes have") << "what was timed";
  EXPECT_EQ(asked, 0);
  counter("fake_lt_unchecked") = 7;
  EXPECT_EQ(of(266, Pick::kLikeOthers), "first guess") << "the library does not run the other one for it";
  EXPECT_EQ(asked, 1);
  counter("fake_lt_unchecked") = 0;
}

TEST_P(LtProduct, OperandsBetweenWords) {
  const bool bare = GetParam();
  const Problem p{.m = 5};
  const auto step = make(library_, anchor_of(p));
  Data<float> data(p);
  std::memmove(data.x.data() + 1, data.x.data(), static_cast<size_t>(p.m * p.k) * sizeof(float));
  std::vector<void*> buffers{data.x.data() + 1,    data.w.data(), data.bias.data(),
                             data.residual.data(), data.y.data(), data.workspace.data()};
  std::atomic<int>& asked = counter("fake_lt_asked");
  asked = 0;
  for (int turn = 0; turn < 2; ++turn) {
    // A library that was told nothing of alignment says itself what it does not take.
    ASSERT_EQ(Data<float>::run_at(*step, buffers), bare ? KRN_STATUS_internal : KRN_STATUS_ok);
    EXPECT_TRUE(bare || data.error() < 1e-5) << data.error();
  }
  EXPECT_EQ(asked, bare ? 0 : 1) << "an algorithm for any element is asked for once, when the first such operand comes";
}

TEST_P(LtProduct, RunsMayOverlapWithOtherBiases) {
  const Problem p{.m = 24, .k = 24, .n = 24};
  const auto step = make(library_, anchor_of(p));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (uint32_t turn = 0; turn < 40; ++turn) {
        Data<float> data(p, 100 * t + turn);
        if (data.run(*step) != KRN_STATUS_ok || data.error() > 1e-4) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(LtProduct, TypesThatTheDeviceHasNot) {
  counter("fake_lt_refused_type") = 6;
  std::string why_not;
  EXPECT_TRUE(library_.takes(kit::kDType_f32, why_not)) << why_not;
  std::atomic<int>& asked = counter("fake_lt_asked");
  asked = 0;
  for (int turn = 0; turn < 2; ++turn) EXPECT_EQ(library_.takes(kit::kDType_f64, why_not), !GetParam());
  EXPECT_EQ(asked, GetParam() ? 1 : 0);
  EXPECT_EQ(why_not, GetParam() ? "fakelt has no products of this type on this device" : "");
  EXPECT_THROW(make(library_, anchor_of({.dtype = kit::kDType_f64})), kit::Error);
}

TEST_P(LtProduct, WhatIsMissingIsSaidInOneLine) {
  std::string why_not;
  lt::Vendor none = vendor_;
  none.files = {"libfake_lt_of_another_name.so"};
  const LtProducts missing(none);
  EXPECT_FALSE(missing.usable(why_not));
  EXPECT_TRUE(why_not.starts_with("no fakelt: libfake_lt_of_another_name.so")) << why_not;
  EXPECT_TRUE(why_not.ends_with("; build it")) << why_not;
  EXPECT_EQ(why_not.find('\n'), std::string::npos);
  EXPECT_FALSE(missing.takes(kit::kDType_f32, why_not));
  lt::Vendor other = vendor_;
  other.prefix = "otherLt";
  EXPECT_FALSE(LtProducts(other).usable(why_not));
  EXPECT_EQ(why_not, "this fakelt lacks otherLtCreate");
  lt::Vendor old = vendor_;
  old.version = [](void*, lt::Handle, std::string& why) { return why = "too old", std::string(); };
  EXPECT_FALSE(LtProducts(old).usable(why_not));
  EXPECT_EQ(why_not, "too old");
}

INSTANTIATE_TEST_SUITE_P(Of, LtProduct, testing::Bool(), [](const auto& info) { return info.param ? "bare" : "whole"; });

}  // namespace
}  // namespace keirin::gpu
