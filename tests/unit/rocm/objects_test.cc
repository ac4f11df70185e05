// SPDX-License-Identifier: Apache-2.0
//
// Generated and hand-written kernels become code objects of each target, without spills; a sample (bench's rocm_table
// compiles all).
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "plugins/codegen/kernel/registers.h"
#include "plugins/gpu/choose.h"
#include "plugins/gpu/product.h"
#include "plugins/kit/tables.h"
#include "rocm/device.h"
#include "rocm/gpu_driver.h"
#include "rocm/hiprtc.h"
#include "tests/unit/cuda/kernel_cases.h"
#include "tests/unit/rocm/kernel_texts.h"
#include "tests/unit/rocm/object_compiler.h"

namespace keirin::test {
namespace {

class RocmObjects : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("keirin-objects-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

TEST_P(RocmObjects, CompileWithoutSpills) {
  const std::string arch = GetParam();
  std::string why_not;
  const std::string compiler = object_compiler(arch, why_not);
  if (compiler.empty()) GTEST_SKIP() << arch << ": " << why_not;
  std::vector<ModuleText> modules = generated_texts(arch, 515, false);
  for (ModuleText& own : own_texts(arch)) modules.push_back(std::move(own));
  const std::string path = folder_ / "module.co";
  int kernels = 0, most_registers = 0, parked = 0;
  for (const ModuleText& m : modules) {
    ASSERT_EQ(compile_object_file(m.text, arch, compiler, path), "") << m.symbols[0];
    std::set<std::string> missing(m.symbols.begin(), m.symbols.end());
    std::ifstream object(path, std::ios::binary);
    const std::vector<char> code{std::istreambuf_iterator<char>(object), {}};
    EXPECT_EQ(rocm::gpu_driver(rocm::wave_of(arch)).spilled(code), 0) << m.symbols[0];
    for (const KernelFacts& f : facts_of(path)) {
      missing.erase(f.symbol.substr(0, f.symbol.rfind('.')));
      EXPECT_EQ(f.wave, rocm::wave_of(arch)) << f.symbol;
      EXPECT_EQ(f.spills, 0) << f.symbol;
      EXPECT_LE(f.shared_bytes, 64 << 10) << f.symbol;
      EXPECT_TRUE(!m.generated || f.scratch_bytes == 0) << f.symbol;
      most_registers = std::max(most_registers, f.vgprs);
      parked += f.parked > 0;
      ++kernels;
    }
    EXPECT_TRUE(missing.empty()) << *missing.begin() << " has no metadata";
  }
  EXPECT_GT(kernels, 40);
  EXPECT_LE(parked, 9) << "only the cases with every function of one kind, and the widest recurrent layers, have so many constants";
  std::printf("%s by %s: %d kernels, at most %d vector registers, at least %d waves a unit, %d park scalars\n",
              arch.c_str(), compiler.c_str(), kernels, most_registers, waves_by_registers(arch, most_registers),
              parked);
}

INSTANTIATE_TEST_SUITE_P(Targets, RocmObjects,
                         testing::Values("gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201"),
                         [](const auto& info) { return std::string(info.param); });

TEST(RocmObjectsAreJudged, ATextThatIsWrongIsRefused) {
  std::string why_not;
  const std::string compiler = object_compiler("gfx90a", why_not);
  if (compiler.empty()) GTEST_SKIP() << why_not;
  const std::string path =
      std::filesystem::temp_directory_path() / ("keirin-wrong-" + std::to_string(getpid()) + ".co");
  EXPECT_NE(
      compile_object_file("extern \"C\" __attribute__((global)) void k() { nobody(); }", "gfx90a", compiler, path), "");
  for (const char* ending : {"", ".hip", ".log"}) std::filesystem::remove(path + ending);
}

// As the notes of a code object hold them: short numbers, and those of one, two and four bytes.
TEST(RocmObjectsAreJudged, RegistersInMemoryAreReadFromTheNotes) {
  const auto spilled = [](std::string text) {
    for (size_t at = text.find('@'); at != std::string::npos; at = text.find('@')) text.replace(at, 1, "\xb1.vgpr_spill_count");
    return rocm::spilled_registers({text.begin(), text.end()});
  };
  EXPECT_EQ(spilled("an object without notes"), -1);
  EXPECT_EQ(spilled(std::string("x@\0y", 4)), 0);
  EXPECT_EQ(spilled("x@\x07y@\xcc\xc8z@\xcd\x01\x02"), 7 + 200 + 258);
  EXPECT_EQ(spilled(std::string("@\xce\0\1\0\0", 6)), 65536);
  EXPECT_EQ(spilled("@"), -1) << "torn";
  EXPECT_EQ(spilled("@\xcd\x01"), -1) << "torn";
}

TEST(RocmTargets, EachSaysItsWaveAndWhoCompilesIt) {
  EXPECT_EQ(rocm::targets().size(), 6u);
  for (const rocm::Target& target : rocm::targets()) {
    const gpu::Gpu gpu = rocm::imagine_gpu(target.arch);
    EXPECT_EQ(gpu.wave, target.wave);
    EXPECT_EQ(gpu.facts.wave, target.wave);
    EXPECT_EQ(gpu.driver->words().dialect.wave, target.wave);
    EXPECT_EQ(gpu.arch, target.arch);
  }
  EXPECT_ANY_THROW(rocm::imagine_gpu("gfx803"));
  std::string why_not;
  EXPECT_FALSE(rocm::compiles_for("gfx803", why_not));
  EXPECT_NE(why_not.find("gfx803"), std::string::npos);
}

// Needs no compiler: what compilers make of it is seen above where they are installed.
TEST(RocmTargets, KernelsAreLaidOutForTheirRegisters) {
  for (const rocm::Target& target : rocm::targets()) {
    const codegen::GpuFacts facts = rocm::imagine_gpu(target.arch).facts;
    EXPECT_EQ(codegen::registers_of_thread(facts, 1024), target.registers) << target.arch;
    codegen::GpuFacts unlimited = facts;
    unlimited.registers = 0;
    int changed = 0;
    for (const KernelCase& c : kernel_cases(1 << 18)) {
      const codegen::Schedule s = codegen::choose_schedule(c.kernel, facts);
      EXPECT_LE(codegen::registers_needed(c.kernel, s), codegen::registers_of_thread(facts, s.threads))
          << target.arch << " " << c.name << " " << codegen::describe_schedule(c.kernel, s);
      changed += codegen::schedule_key(s) != codegen::schedule_key(codegen::choose_schedule(c.kernel, unlimited));
    }
    EXPECT_GT(changed, 0) << target.arch << ": a case with every function does not fit";
    EXPECT_LE(changed, 4) << target.arch << ": most kernels have room and stay as they are";
  }
}

// Neither with a device nor without: what a compile child claims it must be able to compile.
codegen::TensorDesc dense(uint32_t buffer, std::vector<int64_t> sizes) {
  codegen::TensorDesc out;
  out.buffer = buffer, out.dtype = kit::kDType_f32, out.strides.assign(sizes.size(), 1), out.sizes = std::move(sizes);
  for (size_t d = out.sizes.size() - 1; d-- > 0;) out.strides[d] = out.strides[d + 1] * out.sizes[d + 1];
  return out;
}

TEST(RocmTargets, WithoutLibrariesProductsAndConvolutionsAreRefused) {
  gpu::Gpu gpu = rocm::imagine_gpu("gfx1100");
  codegen::AnchorDesc product, conv;
  product.op = kit::kOp_matmul, conv.op = kit::kOp_conv;
  product.operands = {dense(0, {33, 64}), dense(1, {64, 40})};
  product.results = {dense(2, {33, 40})};
  conv.operands = {dense(0, {1, 8, 16, 16}), dense(1, {8, 8, 3, 3}), codegen::TensorDesc{}};
  conv.results = {dense(2, {1, 8, 14, 14})};
  conv.stride = conv.dilation = {1, 1}, conv.padding = {0, 0};
  std::string why_not;
  EXPECT_TRUE(gpu::choose(conv, gpu, KRN_NUMERICS_DEFAULT, false, why_not)) << "by its shape alone: " << why_not;
  if (!gpu::choose(conv, gpu, KRN_NUMERICS_DEFAULT, true, why_not)) {
    EXPECT_FALSE(why_not.empty());
    EXPECT_EQ(why_not.find('\n'), std::string::npos) << why_not;
  }
  gpu.plans = nullptr;
  EXPECT_FALSE(gpu::choose(conv, gpu, KRN_NUMERICS_DEFAULT, false, why_not));
  EXPECT_EQ(why_not, "no library of convolutions");
  EXPECT_TRUE(gpu::choose(product, gpu, KRN_NUMERICS_DEFAULT, false, why_not)) << "by its shape alone: " << why_not;
  if (!gpu.products->usable(why_not)) {
    EXPECT_FALSE(gpu::choose(product, gpu, KRN_NUMERICS_DEFAULT, true, why_not));
    EXPECT_TRUE(why_not.starts_with("no hipblaslt: ") && why_not.find("; install ROCm's hipblaslt; no rocBLAS: ") != std::string::npos &&
              why_not.ends_with("; install ROCm's rocblas")) << why_not;
    EXPECT_EQ(why_not.find('\n'), std::string::npos) << why_not;
  }
  gpu.products = nullptr;
  EXPECT_FALSE(gpu::choose(product, gpu, KRN_NUMERICS_DEFAULT, true, why_not));
  EXPECT_EQ(why_not, "no library of products");
}

TEST(RocmTargets, WhatIsNotThereIsNamedInOneLine) {
  std::string why_not;
  if (rocm::look_at_gpu("", 0, why_not)) GTEST_SKIP() << "there is an AMD GPU";
  EXPECT_FALSE(why_not.empty());
  EXPECT_EQ(why_not.find('\n'), std::string::npos) << why_not;
}

}  // namespace
}  // namespace keirin::test
