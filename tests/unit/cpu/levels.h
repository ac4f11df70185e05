// SPDX-License-Identifier: Apache-2.0
//
// What generated code is tested for: every level of its instruction set that this machine has, the simplest first.
#pragma once

#include <algorithm>
#include <vector>

#include "core/host/find/hardware.h"
#if defined(__aarch64__)
#include "arm/device.h"
namespace keirin::test {
namespace vendor = keirin::arm;
}
#else
#include "cpu/device.h"
namespace keirin::test {
namespace vendor = keirin::cpu;
}
#endif

namespace keirin::test {

inline std::vector<codegen::native::CpuTarget> levels() {
  std::vector<codegen::native::CpuTarget> out;
  std::string why_not;
  krn_hw hardware{};
  const HardwareItem first = find_hardware().at(0);
  std::copy(first.cpu_features.begin(), first.cpu_features.end(), hardware.cpu_features);
  for (const processor::Level& level : vendor::isa().levels)
    if (const auto machine = processor::make_machine(vendor::isa(), vendor::look(hardware), level.name, why_not))
      out.push_back(machine->code);
  std::reverse(out.begin(), out.end());
  return out;
}

}  // namespace keirin::test
