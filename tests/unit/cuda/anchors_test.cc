// SPDX-License-Identifier: Apache-2.0
//
// Hand-written kernels without a GPU: those without matrix units on emulated blocks against the expected results, all of them
// through NVRTC for every architecture that takes them; and what they refuse.
#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/device.h"
#include "cuda/driver.h"
#include "cuda/gpu_driver.h"
#include "cuda/nvrtc.h"
#include "plugins/codegen/text/c_printer.h"
#include "plugins/gpu/backend.h"
#include "plugins/gpu/bags.h"
#include "plugins/gpu/choose.h"
#include "plugins/gpu/csr.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"
#include "tests/unit/cuda/anchor_cases.h"
#include "tests/unit/cuda/block_emulator.h"

namespace keirin::cuda {
namespace {

using namespace gpu;

using test::AnchorCase;

TextKernel kernel_of(const AnchorCase& c, const std::string& arch) {
  std::string why_not;
  auto kernel = own_kernel(c.anchor, imagine_gpu(arch), KRN_NUMERICS_DEFAULT, why_not);
  if (!kernel) throw std::runtime_error(c.name + ": " + why_not);
  return *kernel;
}

std::string emulate(const AnchorCase& c) {
  const TextKernel kernel = kernel_of(c, "sm_90");
  std::string error;
  test::HostModule module(codegen::print_prelude(codegen::kHostDialect) + text_of(kernel), error);
  if (!error.empty()) return error;
  AnchorCase run = c;
  std::vector<void*> pointers;
  for (const codegen::TensorDesc& t : kernel.pointers)
    pointers.push_back(t.present() ? static_cast<char*>(run.buffers[t.buffer].data()) + t.offset * test::element_bytes(t.dtype) : nullptr);
  std::vector<char> workspace(static_cast<size_t>(kernel.workspace_bytes) + 16, char(0xa5));
  pointers.push_back(workspace.data());
  for (const TextKernel::Launch& launch : kernel.launches)
    if (std::string wrong = module.launch(launch.symbol, launch.blocks, launch.threads, kernel.sizes.data(), pointers.data());
        !wrong.empty())
      return wrong;
  for (size_t i = static_cast<size_t>(kernel.workspace_bytes); i < workspace.size(); ++i)
    if (workspace[i] != char(0xa5)) return "wrote behind the workspace";
  return c.difference(run.buffers[c.result]);
}

TEST(Anchors, AgreeOnEmulatedBlocks) {
  int count = 0;
  for (const AnchorCase& c : test::anchor_cases()) {
    if (c.matrix_units) continue;
    EXPECT_EQ(emulate(c), "") << c.name;
    ++count;
  }
  EXPECT_GE(count, 9);
}

TEST(Anchors, TheirTestSeesAWrongResult) {
  const AnchorCase c = test::anchor_cases()[0];
  EXPECT_NE(c.difference(c.buffers[c.result]), "") << "a result that nobody wrote";
}

TEST(Anchors, CompileForEveryArchitecture) {
  std::string why_not;
  if (!Nvrtc::get(why_not)) GTEST_SKIP() << "no NVRTC: " << why_not;
  for (const char* arch : {"sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"}) {
    if (!compiles_for(arch)) continue;
    int count = 0;
    for (const AnchorCase& c : test::anchor_cases()) {
      if (c.matrix_units && std::string(arch) == "sm_75") {
        EXPECT_FALSE(own_kernel(c.anchor, imagine_gpu(arch), KRN_NUMERICS_DEFAULT, why_not)) << c.name;
        continue;
      }
      try {
        compile_cubin(whole_text(kernel_of(c, arch), gpu_driver()), target_of(arch));
        ++count;
      } catch (const std::exception& error) {
        ADD_FAILURE() << arch << ", " << c.name << ": " << error.what();
      }
    }
    std::printf("%s: %d kernels\n", arch, count);
  }
}

TEST(Anchors, JoinOnlyWhatIsAlike) {
  const std::vector<AnchorCase> all = test::anchor_cases();
  const codegen::AnchorDesc one = all[all.size() - 2].anchor;
  codegen::AnchorDesc other = one;
  ASSERT_EQ(one.op, kit::kOp_embedding_bag);
  EXPECT_TRUE(bags_alike(one, other));
  other.operands[2].buffer += 40;
  EXPECT_FALSE(bags_alike(one, other)) << "other offsets";
  other = one, other.mode = "mean";
  EXPECT_FALSE(bags_alike(one, other));
}

// What is read before the kernels before have ended must not be what they write.
TEST(Anchors, OnlyAConstantMatrixIsReadEarly) {
  const std::vector<AnchorCase> all = test::anchor_cases();
  const auto c = std::find_if(all.begin(), all.end(), [](const AnchorCase& each) { return each.anchor.op == kit::kOp_linear; });
  ASSERT_NE(c, all.end());
  AnchorCase constant = *c, computed = *c;
  constant.anchor.operands[1].weight = 0;
  computed.anchor.operands[1].weight = codegen::TensorDesc().weight;
  EXPECT_TRUE(kernel_of(constant, "sm_90").early);
  EXPECT_FALSE(kernel_of(computed, "sm_90").early);
  std::string why_not;
  if (!Nvrtc::get(why_not)) GTEST_SKIP() << "no NVRTC: " << why_not;
  EXPECT_TRUE(make_text_step(kernel_of(constant, "sm_90"), target_of("sm_90"), false)->begins_early());
  EXPECT_FALSE(make_text_step(kernel_of(constant, "sm_80"), target_of("sm_80"), false)->begins_early()) << "only 9.0 and later can";
  EXPECT_FALSE(make_text_step(kernel_of(computed, "sm_90"), target_of("sm_90"), false)->begins_early());
}

TEST(Anchors, RefusalsSayWhy) {
  const Gpu gpu = imagine_gpu("sm_90");
  auto refusal = [&](codegen::AnchorDesc a) {
    std::string why_not;
    EXPECT_FALSE(own_kernel(a, gpu, KRN_NUMERICS_DEFAULT, why_not));
    return why_not;
  };
  codegen::AnchorDesc a = test::anchor_cases()[5].anchor;
  ASSERT_EQ(a.op, kit::kOp_attention);
  codegen::AnchorDesc odd = a;
  odd.operands[0].strides[2] += 1;
  EXPECT_NE(refusal(odd).find("aligned lines"), std::string::npos);
  codegen::AnchorDesc wide = a;
  for (codegen::TensorDesc* t : {&wide.operands[0], &wide.operands[1], &wide.operands[2], &wide.results[0]}) t->sizes[3] = 192;
  EXPECT_NE(refusal(wide).find("width"), std::string::npos);
  for (codegen::TensorDesc* t : {&wide.operands[0], &wide.operands[1], &wide.operands[2], &wide.results[0]}) t->sizes[3] = 128;
  std::string why_not;
  EXPECT_TRUE(own_kernel(wide, gpu, KRN_NUMERICS_DEFAULT, why_not)) << "the widest heads that have one: " << why_not;
  codegen::AnchorDesc doubles = a;
  for (codegen::TensorDesc* t : {&doubles.operands[0], &doubles.operands[1], &doubles.operands[2], &doubles.results[0]})
    t->dtype = kit::kDType_f64;
  EXPECT_NE(refusal(doubles).find("that is not f32, bf16 or f16"), std::string::npos);
  for (size_t i : {0, 1, 2}) {
    codegen::AnchorDesc mixed = a;
    mixed.operands[i].dtype = a.operands[i].dtype == kit::kDType_f16 ? kit::kDType_bf16 : kit::kDType_f16;
    EXPECT_NE(refusal(mixed).find("that is not f32, bf16 or f16"), std::string::npos) << "operand " << i << " of another dtype";
  }
  codegen::AnchorDesc lengthy = a;
  for (size_t i : {1, 2}) lengthy.operands[i].sizes[2] = 4096;
  EXPECT_NE(refusal(lengthy).find("flash"), std::string::npos);
}

}  // namespace
}  // namespace keirin::cuda
