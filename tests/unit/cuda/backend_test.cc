// SPDX-License-Identifier: Apache-2.0
//
// Whole regions through the CUDA backend without a device: they lower, equal structures share code, artifacts warm-start, and a
// run without a device is an error and no crash.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>

#include "cuda/device.h"
#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "plugins/codegen/kernel/rows.h"
#include "plugins/codegen/plan/artifact.h"
#include "plugins/codegen/plan/compiled_region.h"
#include "plugins/gpu/backend.h"
#include "plugins/gpu/choose.h"
#include "plugins/gpu/csr.h"
#include "plugins/gpu/product.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"
#include "tests/unit/codegen/region_builder.h"

namespace keirin::cuda {
namespace {

using namespace gpu;

using namespace codegen;
using codegen::test::RegionBuilder;

constexpr uint8_t kF32 = kDType_f32, kBf16 = kDType_bf16, kI64 = kDType_i64;

std::vector<std::pair<std::string, RegionBuilder>> regions() {
  std::vector<std::pair<std::string, RegionBuilder>> out;
  {
    RegionBuilder g;
    int x = g.input(kBf16, {128, 768}), r = g.input(kBf16, {128, 768}), w = g.input(kBf16, {768}), b = g.input(kBf16, {768});
    g.output(g.layer_norm(g.binary(kOp_add, g.unary(kOp_gelu, x), r), w, b, 1e-5));
    out.emplace_back("gelu_residual_layer_norm", g);
  }
  {
    RegionBuilder g;
    int x = g.input(kF32, {8, 12, 128, 128});
    g.output(g.softmax(x, 3));
    out.emplace_back("softmax", g);
  }
  {
    RegionBuilder g;
    int x = g.input(kF32, {4, 64, 16, 16}), w = g.input(kF32, {64}), b = g.input(kF32, {64});
    g.output(g.unary(kOp_silu, g.group_norm(x, w, b, 8, 1e-5)));
    out.emplace_back("group_norm_silu", g);
  }
  {
    RegionBuilder g;
    int x = g.input(kF32, {4096, 256});
    g.output(g.reduce(kOp_sum, x, {0}, false));
    g.output(g.reduce(kOp_amax, x, {0, 1}, false));
    out.emplace_back("reductions", g);
  }
  {
    RegionBuilder g;
    int x = g.input(kF32, {8, 64, 96}), y = g.input(kF32, {8, 96, 64});
    g.output(g.binary(kOp_add, g.permute(x, {0, 2, 1}), y));
    out.emplace_back("transpose_add", g);
  }
  {
    RegionBuilder g;
    int x = g.input(kF32, {16, 40}), y = g.input(kF32, {16, 24});
    g.output(g.pad(g.cat({x, y}, 1), {0, 1}, {0, 1}, 0.5));
    out.emplace_back("cat_pad", g);
  }
  {
    RegionBuilder g;
    int table = g.input(kF32, {1000, 64}), index = g.input(kI64, {32, 10});
    g.output(g.reduce(kOp_sum, g.take(table, index, 0), {1}, false));
    out.emplace_back("embedding_bag", g);
  }
  {
    RegionBuilder g;
    int self = g.input(kF32, {100, 32}), index = g.input(kI64, {900}), source = g.input(kF32, {900, 32});
    g.output(g.op(kOp_index_reduce, {self, index, source}, kF32, {100, 32},
                  {{kAttr_dim, int64_t{0}}, {kAttr_reduce, std::string("sum")}, {kAttr_include_self, true}}));
    out.emplace_back("scatter_add", g);
  }
  {
    RegionBuilder g;
    for (int64_t i = 1; i <= 40; ++i) g.momentum_step(64 * i);
    out.emplace_back("update", g);
  }
  return out;
}

class BackendTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string why_not;
    if (!Nvrtc::get(why_not)) GTEST_SKIP() << "no NVRTC: " << why_not << " (set KEIRIN_NVRTC to libnvrtc.so)";
  }
};

TEST_F(BackendTest, LowersRegionsAndSharesTheirCode) {
  const Gpu gpu = imagine_gpu("sm_90");
  for (auto& [name, g] : regions()) {
    const std::vector<uint8_t> bytes = g.bytes();
    GpuBackend backend(gpu, nullptr, nullptr);
    CompileContext context;
    std::unique_ptr<codegen::CompiledRegion> made;
    ASSERT_NO_THROW(made = codegen::CompiledRegion::compile(bytes, backend, context)) << name;
    EXPECT_GT(made->num_kernels(), 0u) << name;
    EXPECT_GT(made->num_codegen(), 0u) << name;
    std::printf("%s:\n%s", name.c_str(), made->describe().c_str());
    EXPECT_EQ(codegen::CompiledRegion::compile(bytes, backend, context)->num_codegen(), 0u) << name;
    const std::array<uint8_t, 32> hash{1};
    const std::vector<uint8_t> body = save_artifact(*made, backend, hash);
    EXPECT_EQ(load_artifact(body, bytes, hash, backend, context)->num_codegen(), 0u) << name;
  }
}

TEST_F(BackendTest, RunWithoutADeviceIsAnError) {
  const Gpu gpu = imagine_gpu("sm_90");
  GpuBackend backend(gpu, nullptr, nullptr);
  RegionBuilder g;
  g.output(g.unary(kOp_relu, g.input(kF32, {4})));
  const std::vector<uint8_t> bytes = g.bytes();
  CompileContext context;
  auto made = codegen::CompiledRegion::compile(bytes, backend, context);
  float data[4] = {};
  krn_tensor tensor{};
  tensor.data = data;
  krn_run run{};
  run.hdr.size = sizeof run;
  run.inputs = run.outputs = &tensor;
  run.num_inputs = run.num_outputs = 1;
  std::vector<char> workspace(static_cast<size_t>(made->workspace_bytes()) + 1);
  run.workspace = workspace.data();
  run.workspace_bytes = workspace.size();
  EXPECT_EQ(made->run(run, nullptr, nullptr, nullptr), KRN_STATUS_internal);
}

TEST_F(BackendTest, RefusesWhatEagerDoesBetter) {
  const Gpu gpu = imagine_gpu("sm_90");
  const GpuBackend backend(gpu, nullptr, nullptr);
  std::string why_not;
  EXPECT_TRUE(backend.supports(kOp_conv, kF32, why_not));
  EXPECT_TRUE(backend.supports(kOp_attention, kBf16, why_not));
  EXPECT_TRUE(backend.supports(kOp_linear, kBf16, why_not));
  EXPECT_TRUE(backend.supports(kOp_softmax, kBf16, why_not));
}

TEST_F(BackendTest, ProductsTakeInputsAndResidualsThatLieAcross) {
  auto tensor = [](std::vector<int64_t> sizes, std::vector<int64_t> strides) {
    TensorDesc t;
    t.buffer = 0, t.dtype = kit::kDType_bf16, t.sizes = std::move(sizes), t.strides = std::move(strides);
    return t;
  };
  AnchorDesc linear;
  linear.op = kit::kOp_linear;
  // [197, 64, 768] seen in [64, 197, 768]: no single row axis, but a batch of 197 over one weight.
  linear.operands = {tensor({197, 64, 768}, {768, 197 * 768, 1}), tensor({2304, 768}, {768, 1}), TensorDesc{}};
  linear.results = {tensor({197, 64, 2304}, {64 * 2304, 2304, 1})};
  std::string why_not;
  EXPECT_TRUE(product_taken(linear, why_not)) << why_not;
  // A residual may lie across as well, but not with gaps between its columns.
  linear.post_ops = {{kit::kOp_add, tensor({197, 64, 2304}, {2304, 197 * 2304, 1}), 0, 0}};
  EXPECT_TRUE(product_taken(linear, why_not)) << why_not;
  linear.post_ops[0].operand.strides = {2 * 64 * 2304, 2 * 2304, 2};
  EXPECT_FALSE(product_taken(linear, why_not));
}

TEST_F(BackendTest, ChoicesTravelUnderTheirNames) {
  const std::string name = std::string(kChoicePrefix) + "of a test";
  EXPECT_TRUE(code_store().recall(name).empty());
  code_store().remember(name, {'a', 'b', 'c'});
  std::vector<uint8_t> saved;
  code_store().save(code_store().names_from(name), saved);
  EXPECT_EQ(code_store().names_from(name), std::vector<std::string>{name});
  EXPECT_EQ(code_store().recall(name), (std::vector<char>{'a', 'b', 'c'}));
  CodeStore other;
  other.take(saved);
  EXPECT_EQ(other.recall(name), code_store().recall(name));
}

TEST_F(BackendTest, NumericsDecideTheOptions) {
  const Gpu gpu = imagine_gpu("sm_90");
  krn_policy policy{};
  const std::string normal = GpuBackend(gpu, nullptr, &policy).token();
  policy.numerics = KRN_NUMERICS_STRICT;
  const std::string strict = GpuBackend(gpu, nullptr, &policy).token();
  EXPECT_NE(strict.find("--fmad=false"), std::string::npos);
  EXPECT_EQ(normal.find("fast_math"), std::string::npos);
  policy.numerics = KRN_NUMERICS_FAST;
  EXPECT_NE(GpuBackend(gpu, nullptr, &policy).token().find("--use_fast_math"), std::string::npos);
}

}  // namespace
}  // namespace keirin::cuda
