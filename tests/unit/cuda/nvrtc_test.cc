// SPDX-License-Identifier: Apache-2.0
//
// Every printed kernel compiles for every architecture that this NVRTC knows; no device is needed. Skips where NVRTC is absent.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "cuda/device.h"
#include "cuda/nvrtc.h"
#include "plugins/codegen/text/c_printer.h"
#include "plugins/gpu/code_store.h"
#include "plugins/kit/error.h"
#include "tests/unit/cuda/kernel_cases.h"

namespace keirin::cuda {
namespace {

using namespace gpu;

using namespace codegen;

class NvrtcTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    std::string why_not;
    if (!Nvrtc::get(why_not)) GTEST_SKIP() << "no NVRTC: " << why_not << " (set KEIRIN_NVRTC to libnvrtc.so)";
    if (!compiles_for(arch())) GTEST_SKIP() << "NVRTC " << nvrtc_version() << " does not know " << arch();
  }
  static std::string arch() { return "sm_" + std::to_string(GetParam()); }
};

TEST_P(NvrtcTest, CompilesEveryKernel) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  // One architecture gets all schedules, the others the chosen one.
  const bool all = GetParam() == 90;
  std::vector<test::KernelCase> cases = test::kernel_cases(515);
  std::vector<CodeStore::Wanted> wanted;
  const CodeTarget target = target_of(arch());
  for (const test::KernelCase& c : cases)
    for (const Schedule& s : test::schedules_for(c.kernel, GetParam() >= 90)) {
      wanted.push_back({&c.kernel, s, CodeNames(c.kernel, target).of(s)});
      if (!all) break;
    }
  CodeStore store;
  uint32_t count = 0;
  try {
    count = store.compile(wanted, target, {});
  } catch (const kit::Error& error) {
    FAIL() << error.what();
  }
  const double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  std::printf("%s: %u kernels in %.0f ms, %.1f ms each, %llu KB\n", arch().c_str(), count, ms, ms / count,
              static_cast<unsigned long long>(store.code_bytes() >> 10));
  EXPECT_GT(count, 50u);
  EXPECT_EQ(store.compile(wanted, target, {}), 0u) << "known kernels are not compiled again";
  std::vector<std::string> names;
  for (const auto& w : wanted) names.push_back(w.name);
  std::vector<uint8_t> bytes;
  store.save(names, bytes);
  CodeStore second;
  second.take(bytes);
  EXPECT_EQ(second.compile(wanted, target, {}), 0u) << "a warm start compiles nothing";
  bytes.resize(bytes.size() - 1);
  EXPECT_THROW(CodeStore().take(bytes), kit::Error);
}

INSTANTIATE_TEST_SUITE_P(Arch, NvrtcTest, testing::Values(75, 80, 86, 89, 90, 100, 120),
                         testing::PrintToStringParamName());

TEST(Nvrtc, RefusalCarriesTheLog) {
  std::string why_not;
  if (!Nvrtc::get(why_not)) GTEST_SKIP() << "no NVRTC: " << why_not;
  try {
    compile_cubin("this is not a kernel", target_of("sm_90"));
    FAIL() << "compiled nonsense";
  } catch (const kit::Error& error) {
    EXPECT_NE(std::string(error.what()).find("error"), std::string::npos) << error.what();
  }
}

TEST(Nvrtc, NamesTellStructuresAndTargetsApart) {
  std::string why_not;
  if (!Nvrtc::get(why_not)) GTEST_SKIP() << "no NVRTC: " << why_not;
  const auto a = test::kernel_cases(64), b = test::kernel_cases(72);
  const CodeTarget target = target_of("sm_90");
  Schedule s = choose_schedule(a[0].kernel, {});
  EXPECT_EQ(CodeNames(a[0].kernel, target).of(s), CodeNames(b[0].kernel, target).of(s)) << "sizes are arguments";
  EXPECT_NE(CodeNames(a[0].kernel, target).of(s), CodeNames(a[1].kernel, target).of(s));
  EXPECT_NE(CodeNames(a[0].kernel, target).of(s), CodeNames(a[0].kernel, target_of("sm_80")).of(s));
  s.wide = true;
  EXPECT_NE(CodeNames(a[0].kernel, target).of(s), CodeNames(a[0].kernel, target).of(choose_schedule(a[0].kernel, {})));
}

}  // namespace
}  // namespace keirin::cuda
