// SPDX-License-Identifier: Apache-2.0
//
// The AMD plugin's texts through its own calls of hipRTC, where that is the stand-in over NVRTC: what runs on a GPU later compiles here
// first. Skips, with the reason, where there is no NVRTC.
#include <gtest/gtest.h>

#include <set>

#include "cuda/nvrtc.h"
#include "plugins/gpu/device.h"
#include "plugins/kit/tables.h"
#include "plugins/kit/error.h"
#include "rocm/device.h"
#include "rocm/driver.h"
#include "rocm/hiprtc.h"
#include "rocm/miopen.h"
#include "tests/unit/cuda/host_driver.h"
#include "tests/unit/rocm/kernel_texts.h"

namespace keirin::test {
namespace {

constexpr char kArch[] = "gfx1100";

class Standin : public testing::Test {
 protected:
  void SetUp() override {
    std::string why_not;
    if (!cuda::Nvrtc::get(why_not)) GTEST_SKIP() << "no NVRTC: " << why_not << " (set KEIRIN_NVRTC to libnvrtc.so)";
    ASSERT_TRUE(rocm::could_look(why_not)) << why_not;
  }
};

gpu::CodeTarget target() {
  static const gpu::Gpu gpu = rocm::imagine_gpu(kArch);
  return gpu::code_target(gpu, nullptr);
}

TEST_F(Standin, IsWhatTheLoaderFinds) {
  EXPECT_EQ(rocm::hip_version(), "7.0");
  std::string why_not;
  const bool found = rocm::look_at_gpu("", 0, why_not) != nullptr;
  EXPECT_NE(found, !why_not.empty()) << why_not;
}

TEST_F(Standin, TextsCompile) {
  for (const std::vector<ModuleText>& texts : {own_texts(kArch), generated_texts(kArch, 515, false)}) {
    ASSERT_FALSE(texts.empty());
    for (const ModuleText& module : texts) {
      SCOPED_TRACE(module.symbols[0]);
      std::string code;
      try {
        const std::vector<char> bytes = rocm::compile_object(module.text, target());
        code.assign(bytes.begin(), bytes.end());
      } catch (const kit::Error& error) {
        FAIL() << error.what();
      }
      for (const std::string& symbol : module.symbols) EXPECT_NE(code.find(symbol), std::string::npos) << symbol;
    }
  }
}

// Without a device its cuDNN has no plan; what it is asked for has to be there and to be understood.
TEST(StandinMiopen, HasWhatIsAskedOfIt) {
  class Nowhere final : public HostDriver {
   public:
    gpu::Result current(gpu::ContextHandle& context) const override { return context = nullptr, 0; }
  };
  static const Nowhere driver;
  const auto library = rocm::open_miopen({"libMIOpen.so.1"}, driver, [] { return std::string("a stand-in"); });
  gpu::ConvProblem p;
  p.x = {kit::kDType_f32, {2, 8, 9, 9}, {648, 81, 9, 1}}, p.w = {kit::kDType_f32, {4, 8, 3, 3}, {72, 9, 3, 1}};
  p.y = {kit::kDType_f32, {2, 4, 7, 7}, {196, 49, 7, 1}};
  p.stride = p.dilation = {1, 1}, p.padding = {0, 0};
  std::string why_not;
  const bool supported = library->supports(p, why_not);
  EXPECT_EQ(why_not.find("no MIOpen"), std::string::npos) << why_not;
  EXPECT_EQ(why_not.find("lacks"), std::string::npos) << why_not;
  EXPECT_NE(supported, !why_not.empty());
  std::printf("%s\n", supported ? "cuDNN has a plan" : why_not.c_str());
}

TEST_F(Standin, RefusesWhatItDoesNotKnow) {
  gpu::CodeTarget other = target();
  other.arch = "gfx942";
  EXPECT_THROW(rocm::compile_object("extern \"C\" __attribute__((global)) void f() {}", other), kit::Error);
  EXPECT_THROW(rocm::compile_object("no text", target()), kit::Error);
}

}  // namespace
}  // namespace keirin::test
