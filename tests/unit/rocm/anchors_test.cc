// SPDX-License-Identifier: Apache-2.0
//
// Hand-written kernels on emulated waves of 64 and of 32, as the AMD targets get them.
#include <gtest/gtest.h>

#include <cmath>

#include "plugins/codegen/text/c_printer.h"
#include "tests/unit/cuda/block_emulator.h"
#include "tests/unit/rocm/kernel_texts.h"

namespace keirin::test {
namespace {

// Refused by the compiler unless each kernel has a place for every pointer that a step passes: the tensors and the workspace.
std::string with_places_checked(const gpu::TextKernel& kernel) {
  std::string text = gpu::text_of(kernel) +
                     "\ntemplate <class S, class P> constexpr int krn_places(void (*)(const S&, const P&)) { return sizeof(P) / 8; }\n";
  for (const auto& launch : kernel.launches)
    text += "static_assert(krn_places(&" + launch.symbol + ") == " + std::to_string(kernel.pointers.size() + 1) +
            ", \"places for pointers\");\n";
  return text;
}

std::string emulate(const AnchorCase& c, const gpu::TextKernel& kernel, int wave) {
  std::string error;
  HostModule module(codegen::print_prelude(host_dialect(wave)) + with_places_checked(kernel), error);
  if (!error.empty()) return error;
  AnchorCase run = c;
  std::vector<void*> pointers;
  for (const codegen::TensorDesc& t : kernel.pointers)
    pointers.push_back(
        t.present() ? static_cast<char*>(run.buffers[t.buffer].data()) + t.offset * element_bytes(t.dtype) : nullptr);
  std::vector<char> workspace(static_cast<size_t>(kernel.workspace_bytes) + 16, char(0xa5));
  pointers.push_back(workspace.data());
  for (const auto& launch : kernel.launches) {
    const std::string wrong =
        module.launch(launch.symbol, launch.blocks, launch.threads, kernel.sizes.data(), pointers.data());
    if (!wrong.empty()) return wrong;
  }
  return c.difference(run.buffers[c.result]);
}

class RocmAnchors : public testing::TestWithParam<const char*> {};

TEST_P(RocmAnchors, AgreeOnEmulatedWaves) {
  const std::string arch = GetParam();
  int run = 0, units = 0;
  for (const AnchorCase& c : anchor_cases()) {
    std::string why_not;
    const auto kernel = own_kernel_for(c, arch, why_not);
    ASSERT_TRUE(kernel) << c.name << ": " << why_not;
    units += c.matrix_units;
    EXPECT_EQ(emulate(c, *kernel, arch == std::string("gfx942") ? 64 : 32), "") << c.name;
    ++run;
  }
  EXPECT_GE(units, 6);
  std::printf("%s: %d kernels agree, %d of them by matrix units\n", arch.c_str(), run, units);
}

// One block has all units, so that it waits for nobody.
TEST_P(RocmAnchors, RecurrentLayersAgreeOnEmulatedWaves) {
  const std::string arch = GetParam();
  for (const RnnCase& c : rnn_cases()) {
    if (c.anchor.results[1].sizes[2] > 32) continue;
    const gpu::TextKernel kernel = rnn_kernel_for(c, arch, 1);
    std::string error;
    HostModule module(codegen::print_prelude(host_dialect(arch == std::string("gfx942") ? 64 : 32)) + with_places_checked(kernel), error);
    ASSERT_EQ(error, "");
    RnnCase run = c;
    std::vector<char> states(static_cast<size_t>(kernel.workspace_bytes));
    std::vector<void*> pointers = run.pointers(run.buffers);
    pointers.push_back(states.data());
    for (const auto& launch : kernel.launches)
      ASSERT_EQ(module.launch(launch.symbol, launch.blocks, launch.threads, kernel.sizes.data(), pointers.data()), "") << c.name;
    EXPECT_EQ(c.difference(run.buffers), "") << c.name;
  }
}

// What a library leaves is added row by row; between the rows nothing is touched.
TEST_P(RocmAnchors, ATailAgreesOnEmulatedWaves) {
  const int wave = GetParam() == std::string("gfx942") ? 64 : 32;
  for (uint8_t dtype : {kBf16, kF16, kF32}) {
    const gpu::TextKernel kernel = tail_kernel(dtype);
    Tail tail(dtype);
    std::string error;
    HostModule module(codegen::print_prelude(host_dialect(wave)) + with_places_checked(kernel), error);
    ASSERT_EQ(error, "");
    void* pointers[] = {tail.y.data(), tail.bias.data(), tail.residual.data(), nullptr};
    const auto& launch = kernel.launches[0];
    ASSERT_EQ(module.launch(launch.symbol, launch.blocks, launch.threads, kernel.sizes.data(), pointers), "");
    for (int64_t i = 0; i < kTailRows * kTailStride; ++i) {
      const double got = read_element(tail.y.data(), i, dtype).real, want = read_element(tail.want.data(), i, dtype).real;
      EXPECT_TRUE(got == want || (std::isnan(got) && std::isnan(want)))
          << "element " << i << " of dtype " << int{dtype} << ": " << got << ", want " << want;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, RocmAnchors, testing::Values("gfx942", "gfx1100"),
                         [](const auto& info) { return std::string(info.param); });

// The emulator has to notice a text that takes a wave of 64 for one of 32.
TEST(RocmAnchorsAreJudged, ATextOfAnotherWaveIsWrong) {
  for (const AnchorCase& c : anchor_cases()) {
    std::string why_not;
    auto kernel = own_kernel_for(c, "gfx942", why_not);
    std::string text = kernel ? gpu::text_of(*kernel) : "";
    const size_t at = text.find("krn_join<m_sum, KRN_WAVE>");
    if (at == std::string::npos) continue;
    EXPECT_EQ(emulate(c, *kernel, 64), "") << c.name;
    text.replace(text.find("KRN_WAVE", at), 8, "32");
    kernel->defines.clear(), kernel->parts = {text};
    EXPECT_NE(emulate(c, *kernel, 64), "") << c.name;
    return;
  }
  FAIL() << "no product of few rows among the cases";
}

}  // namespace
}  // namespace keirin::test
