// SPDX-License-Identifier: Apache-2.0
//
// What NVML tells of other processes becomes the condition of a device.
#include "cuda/nvml.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <ctime>

namespace keirin::cuda {
namespace {

class NvmlTest : public ::testing::Test {
 protected:
  // By its name in the loader's list, before anything asks for the real one.
  void SetUp() override {
    fake_ = dlopen(KEIRIN_FAKE_NVML, RTLD_NOW);
    ASSERT_NE(fake_, nullptr) << dlerror();
  }
  template <class T>
  T& of(const char* name) {
    return *static_cast<T*>(dlsym(fake_, name));
  }
  krn_condition with(std::initializer_list<std::pair<unsigned, unsigned>> processes) {
    unsigned n = 0;
    for (const auto& [pid, units] : processes) of<unsigned[8]>("fake_pids")[n] = pid, of<unsigned[8]>("fake_units")[n++] = units;
    of<unsigned>("fake_num") = n;
    krn_condition out{};
    const auto condition = condition_of("0000:00:06.0");
    EXPECT_TRUE(condition);
    condition(out);
    return out;
  }
  const unsigned own_ = static_cast<unsigned>(getpid());
  void* fake_ = nullptr;
};

TEST_F(NvmlTest, OthersAreAllButThisProcess) {
  EXPECT_EQ(with({{own_, 90}}).others_percent, 0u);
  EXPECT_EQ(with({{own_, 40}, {own_ + 1, 55}}).others_percent, 55u);
  EXPECT_EQ(with({{own_, 0}, {own_ + 1, 30}, {own_ + 2, 20}}).others_percent, 50u);
  EXPECT_EQ(with({{own_, 50}, {own_ + 1, 0}}).others_percent, 0u) << "it has memory and no work";
  EXPECT_EQ(with({{own_ + 1, 99}}).others_percent, 0u) << "numbers of another namespace: nobody is this process";
  const krn_condition quiet = with({{own_, 90}});
  EXPECT_EQ(quiet.clock_mhz, 1500u);
  EXPECT_EQ(quiet.flags, 0u);
}

// An H200's driver refuses lists of fewer than 72, which made every neighbour invisible.
TEST_F(NvmlTest, TheDriverHasAsMuchRoomAsItAsksFor) {
  for (const unsigned room : {1u, 72u, 1000u}) {
    of<unsigned>("fake_room") = room;
    EXPECT_EQ(with({{own_, 40}, {own_ + 1, 55}}).others_percent, 55u) << room;
  }
}

TEST_F(NvmlTest, TheLastSecondIsAskedFor) {
  with({{own_, 1}});
  const auto now_us = static_cast<unsigned long long>(std::time(nullptr)) * 1'000'000;
  EXPECT_NEAR(static_cast<double>(now_us) - static_cast<double>(of<unsigned long long>("fake_since_us")), 1e6, 1.1e6);
}

}  // namespace
}  // namespace keirin::cuda
