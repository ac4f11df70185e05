// SPDX-License-Identifier: Apache-2.0
//
// What hardware this machine has, found without any vendor's library: processor features from cpuid or the auxiliary
// vector, GPUs from what the kernel shows in /proc and /sys. Plugins get this list and say which items they can drive.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/tensor.h"

namespace keirin {

struct HardwareItem {
  std::string uid;           // "cpu:0", "pci:0000:3b:00.0": one name per piece of hardware for all plugins
  std::string description;   // for people
  uint32_t vendor_id = 0;    // PCI; 0 for processors
  uint32_t device_id = 0;
  std::optional<Device> torch_device;  // where LibTorch drives it, if it does
  std::string driver;        // name and version
  // Usable features: the processor has them and the operating system saves their registers. On x86-64:
  //   [0] leaf 1:     ecx | edx << 32       [1] leaf 7.0: ebx | ecx << 32
  //   [2] leaf 7.0 edx | leaf 7.1 eax << 32 [3] leaf 0x80000001: ecx | edx << 32
  // On AArch64: [0] AT_HWCAP, [1] AT_HWCAP2, [2] bytes of one of SVE's registers, as this process has them; [3] MIDR_EL1.
  // Else zero, and where something is not told.
  std::array<uint64_t, 4> cpu_features{};
  bool operator==(const HardwareItem&) const = default;
};

// The processor first, then GPUs in PCI order. `root` is the file system to read /proc and /sys from: "" but in tests.
// `visible_devices` is the value of CUDA_VISIBLE_DEVICES, or null if unset.
std::vector<HardwareItem> find_hardware(const std::string& root, const char* visible_devices);
std::vector<HardwareItem> find_hardware();

// Whether the named feature ("avx2", "avx512f", "asimd", "sve", ...) is usable; nothing for a name that is not known here.
std::optional<bool> has_cpu_feature(const HardwareItem& cpu, std::string_view name);

// "linux-x86_64", "linux-aarch64": the os_arch of manifests for this build.
std::string_view host_os_arch();

// What a device's driver tells of it at one moment; 0: not told.
struct DeviceCondition {
  uint32_t clock_mhz = 0;       // of the units that compute
  bool slowed = false;          // heat or the power supply holds its clocks down
  uint32_t others_percent = 0;  // of the last second, in which other processes had work on it
};

}  // namespace keirin
