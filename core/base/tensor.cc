// SPDX-License-Identifier: Apache-2.0
#include "core/base/tensor.h"

#include <charconv>

namespace keirin {

std::string device_name(const Device& device) {
  switch (device.kind) {
    case Device::kCpu: return "cpu";
    case Device::kCuda: return "cuda:" + std::to_string(device.index);
    case Device::kHip: return "rocm:" + std::to_string(device.index);
  }
  return "device" + std::to_string(device.kind) + ":" + std::to_string(device.index);
}

std::optional<Device> device_from_name(std::string_view name) {
  if (name == "cpu") return Device{};
  constexpr std::string_view kCuda = "cuda", kRocm = "rocm";
  const bool rocm = name.starts_with(kRocm);
  if (!rocm && !name.starts_with(kCuda)) return std::nullopt;
  name.remove_prefix(kCuda.size());
  Device device{rocm ? Device::kHip : Device::kCuda, 0};
  if (name.empty()) return device;
  if (name.size() < 2 || name.size() > 4 || name[0] != ':') return std::nullopt;
  const auto [end, error] = std::from_chars(name.data() + 1, name.data() + name.size(), device.index);
  if (error != std::errc() || end != name.data() + name.size() || device.index < 0) return std::nullopt;
  return device;
}

}  // namespace keirin
