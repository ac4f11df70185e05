// SPDX-License-Identifier: Apache-2.0
//
// Products through rocBLAS, here one on the host (fake_rocblas.cc) that computes what its arguments say and refuses what does not fit
// together: whole regions over it, whose biases and activations are kernels of ours behind its call; what it has no products of; and
// that it is asked only where the library before it has none.
#include "rocm/rocblas.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "plugins/gpu/backend.h"
#include "plugins/kit/tables.h"
#include "tests/unit/codegen/check.h"
#include "tests/unit/cuda/host_driver.h"
#include "tests/unit/cuda/host_products.h"

namespace keirin::test {
namespace {

using codegen::test::RegionBuilder;

const HostDriver& host() {
  static const auto* driver = new HostDriver;
  return *driver;
}

std::atomic<int>& counter(const char* name) {
  static void* library = dlopen(KEIRIN_FAKE_ROCBLAS, RTLD_NOW);
  return *static_cast<std::atomic<int>*>(dlsym(library, name));
}

std::unique_ptr<gpu::ProductLibrary> open() { return rocm::open_rocblas({"librocblas_of_another_name.so", KEIRIN_FAKE_ROCBLAS}, host()); }

struct Case {
  const char* name;
  void (*fill)(RegionBuilder&, uint8_t dtype);
  bool is_batched = false;
};

codegen::Dims dims(std::initializer_list<int64_t> sizes) { return codegen::Dims(sizes); }

// Matrices are larger than what kernels of few rows take.
const Case kCases[] = {
    {"a linear layer with a bias",
     [](RegionBuilder& g, uint8_t t) {
       g.output(g.linear(g.input(t, {19, 24}), g.input(t, {9, 24}), g.input(t, {9})));
     }},
    {"and a ReLU",
     [](RegionBuilder& g, uint8_t t) {
       g.output(g.unary(codegen::kOp_relu, g.linear(g.input(t, {19, 24}), g.input(t, {9, 24}), g.input(t, {9}))));
     }},
    {"a residual before a tanh-GELU",
     [](RegionBuilder& g, uint8_t t) {
       const int y = g.linear(g.input(t, {19, 24}), g.input(t, {9, 24}), g.input(t, {9}));
       g.output(g.unary(codegen::kOp_gelu_tanh, g.binary(codegen::kOp_add, y, g.input(t, {19, 9}))));
     }},
    {"a ReLU without a bias",
     [](RegionBuilder& g, uint8_t t) {
       g.output(g.unary(codegen::kOp_relu, g.matmul(g.input(t, {19, 24}), g.input(t, {24, 9}))));
     }},
    {"transposed operands",
     [](RegionBuilder& g, uint8_t t) {
       g.output(g.matmul(g.permute(g.input(t, {24, 19}), {1, 0}), g.permute(g.input(t, {9, 24}), {1, 0})));
     }},
    {"a batch",
     [](RegionBuilder& g, uint8_t t) {
       g.output(g.matmul(g.input(t, {3, 5, 6}), g.input(t, {3, 6, 7})));
     },
     true},
    {"one matrix for all of a batch",
     [](RegionBuilder& g, uint8_t t) {
       g.output(g.matmul(g.input(t, {3, 5, 6}), g.expand(g.input(t, {6, 7}), dims({3, 6, 7}))));
     },
     true},
    {"a batch into a place of a concatenation",
     [](RegionBuilder& g, uint8_t t) {
       g.output(g.cat({g.input(t, {3, 5, 2}), g.matmul(g.input(t, {3, 5, 6}), g.input(t, {3, 6, 7}))}, 2));
     },
     true},
};

class Rocblas : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"fake_rocblas_plain", "fake_rocblas_batched", "fake_rocblas_refuses", "fake_rocblas_wrong"}) counter(name) = 0;
  }
  void TearDown() override { EXPECT_EQ(counter("fake_rocblas_wrong"), 0) << "what the library was told does not fit together"; }

  void run(const Case& c, uint8_t dtype, const gpu::ProductLibrary& library, const char* named) {
    SCOPED_TRACE(std::string(c.name) + ", dtype " + std::to_string(dtype));
    RegionBuilder g;
    c.fill(g, dtype);
    gpu::Gpu gpu = host_gpu(host());
    gpu.products = &library;
    const gpu::Context context(gpu);
    gpu::GpuBackend backend(gpu, &context, nullptr);
    // The library rounds its result before a kernel adds the bias: two roundings to the dtype.
    const double tolerance = dtype == kit::kDType_bf16 ? 2.0 / 256 : dtype == kit::kDType_f16 ? 2.0 / 2048 : 1e-4;
    const auto checked = codegen::test::check(g, backend, {}, tolerance);
    EXPECT_NE(checked.executable->describe().find(named), std::string::npos) << checked.executable->describe();
  }
};

TEST_F(Rocblas, ComputesWhatIsAskedInEveryType) {
  const auto library = open();
  for (const Case& c : kCases)
    for (uint8_t dtype : {kit::kDType_f32, kit::kDType_f16, kit::kDType_bf16}) run(c, dtype, *library, "rocblas");
  EXPECT_GT(counter("fake_rocblas_plain"), 0);
  EXPECT_GT(counter("fake_rocblas_batched"), 0);
}

TEST_F(Rocblas, WhatIsBareHasF64Too) {
  const auto library = open();
  run(kCases[4], kit::kDType_f64, *library, "rocblas");
}

TEST_F(Rocblas, ATypeWithoutProductsIsNotTaken) {
  const auto library = open();
  counter("fake_rocblas_refuses") = 168;
  std::string why_not;
  EXPECT_FALSE(library->takes(kit::kDType_bf16, why_not));
  EXPECT_NE(why_not.find("rocBLAS"), std::string::npos) << why_not;
  EXPECT_TRUE(library->takes(kit::kDType_f32, why_not)) << why_not;
  EXPECT_FALSE(library->fuses(kit::kDType_f32));
}

TEST_F(Rocblas, IsMissedInOneLine) {
  const auto library = rocm::open_rocblas({"librocblas_of_another_name.so"}, host());
  std::string why_not;
  EXPECT_FALSE(library->usable(why_not));
  EXPECT_NE(why_not.find("install ROCm's rocblas"), std::string::npos) << why_not;
}

class NoF32 final : public gpu::ProductLibrary {
 public:
  bool usable(std::string&) const override { return true; }
  bool takes(uint8_t dtype, std::string& why_not) const override { return dtype != kit::kDType_f32 || (why_not = "no f32", false); }
  std::unique_ptr<codegen::Step> make(const codegen::AnchorDesc& anchor, const gpu::ProductProblem& problem, bool tf32, gpu::Pick pick,
                                      double* seconds) const override {
    return products_.make(anchor, problem, tf32, pick, seconds);
  }

 private:
  HostProducts products_;
};

TEST_F(Rocblas, IsAskedWhereTheFirstLibraryHasNone) {
  const NoF32 first;
  const auto second = open();
  const auto both = gpu::either_products(first, *second);
  EXPECT_FALSE(both->fuses(kit::kDType_f32));
  EXPECT_TRUE(both->fuses(kit::kDType_bf16));
  run(kCases[0], kit::kDType_f32, *both, "rocblas");
  const int before = counter("fake_rocblas_plain");
  run(kCases[0], kit::kDType_bf16, *both, "");
  EXPECT_EQ(counter("fake_rocblas_plain"), before);
}

TEST_F(Rocblas, ThreadsTakeTurnsAtItsHandle) {
  const auto library = open();
  std::string why_not;
  ASSERT_TRUE(library->takes(kit::kDType_f32, why_not)) << why_not;
  RegionBuilder g;
  g.output(g.matmul(g.input(kit::kDType_f32, {40, 40}), g.input(kit::kDType_f32, {40, 40})));
  gpu::Gpu gpu = host_gpu(host());
  gpu.products = library.get();
  const gpu::Context context(gpu);
  gpu::GpuBackend backend(gpu, &context, nullptr);
  const auto made = codegen::CompiledRegion::compile(g.bytes(), backend, {});
  const auto work = [&] {
    std::vector<float> x(1600, 1), w(1600, 2), y(1600);
    const auto tensor = [](std::vector<float>& v) {
      krn_tensor t{};
      t.data = v.data();
      return t;
    };
    krn_tensor in[] = {tensor(x), tensor(w)}, out[] = {tensor(y)};
    krn_run run{};
    run.inputs = in, run.outputs = out, run.num_inputs = 2, run.num_outputs = 1;
    std::vector<char> workspace(static_cast<size_t>(made->workspace_bytes()) + 1);
    run.workspace = workspace.data(), run.workspace_bytes = static_cast<uint64_t>(made->workspace_bytes());
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(made->run(run, nullptr, nullptr, nullptr), KRN_STATUS_ok);
      EXPECT_EQ(y[7], 80);
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back(work);
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace keirin::test
