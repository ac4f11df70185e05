// SPDX-License-Identifier: Apache-2.0
//
// Names of devices, there and back.
#include <gtest/gtest.h>

#include "core/base/tensor.h"

namespace keirin {
namespace {

TEST(DeviceName, GoesThereAndBack) {
  for (const Device device :
       {Device{}, Device{Device::kCuda, 0}, Device{Device::kCuda, 12}, Device{Device::kHip, 0}, Device{Device::kHip, 3}})
    EXPECT_EQ(device_from_name(device_name(device)), device) << device_name(device);
  EXPECT_EQ(device_name({Device::kHip, 1}), "rocm:1");
}

TEST(DeviceName, AloneIsTheFirst) {
  EXPECT_EQ(device_from_name("cuda"), (Device{Device::kCuda, 0}));
  EXPECT_EQ(device_from_name("rocm"), (Device{Device::kHip, 0}));
}

TEST(DeviceName, OtherWordsAreNone) {
  for (const char* word :
       {"", "gpu", "hip", "hip:0", "rocm:", "rocm:x", "rocm:-1", "rocm0", "rocm:1000", "cuda:", "cuda:1x", "cpu:0", "ROCM"})
    EXPECT_FALSE(device_from_name(word)) << word;
}

}  // namespace
}  // namespace keirin
