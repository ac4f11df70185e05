// SPDX-License-Identifier: Apache-2.0
//
// What this machine's CPU is: its features, as usable by the CPU and the operating system, and the figures that thresholds read.
#pragma once

#include <memory>
#include <string>

#include "plugins/codegen/backend.h"
#include "plugins/codegen/llvm/cpu_target.h"

namespace keirin::cpu {

enum Feature : uint32_t { kAvx2 = 1, kAvx512 = 2, kBf16 = 4, kAmx = 8 };

// Bits of Feature. kAvx2 includes FMA and F16C, kAvx512 the F, BW, DQ, CD and VL parts.
uint32_t usable_features();

struct Machine {
  std::string name;         // "AMD EPYC 9B14"
  std::string arch;         // "x86-64-v4"
  std::string fingerprint;  // features beyond the arch
  uint32_t features = 0;
  uint64_t memory_bytes = 0;
  codegen::native::CpuTarget code;
  codegen::TargetInfo info;
};

// The machine as seen with these features only, so that one machine can test every row of target.def; null with a reason where
// no row fits. Measures memory bandwidth for a few milliseconds, once for the process.
std::unique_ptr<Machine> look_at_machine(uint32_t features, std::string& why_not);

}  // namespace keirin::cpu
