// SPDX-License-Identifier: Apache-2.0
#include "core/base/tensor.h"

namespace keirin {

std::string device_name(const Device& device) {
  switch (device.kind) {
    case Device::kCpu: return "cpu";
    case Device::kCuda: return "cuda:" + std::to_string(device.index);
    case Device::kHip: return "hip:" + std::to_string(device.index);
  }
  return "device" + std::to_string(device.kind) + ":" + std::to_string(device.index);
}

}  // namespace keirin
