// SPDX-License-Identifier: Apache-2.0
//
// Loop kernels that between them use every shape, level, dtype and kind of access of the C printer. The same list is run on
// emulated blocks, compiled by NVRTC, and run on a device.
#pragma once

#include <string>
#include <vector>

#include "plugins/codegen/kernel/schedule.h"

namespace keirin::test {

struct KernelCase {
  std::string name;
  codegen::Kernel kernel;
  int64_t index_below = 0;          // integer inputs are indices below it
  std::vector<int32_t> rows, order; // CSR
  double loosen = 1;
  bool positive = false;
};

// `n` sets the lengths of rows: small ones leave tails, large ones take several pieces for each thread.
std::vector<KernelCase> kernel_cases(int64_t n);

// Schedules that one kernel may get: the chosen one for a large and for a tiny device, 64-bit indices, one element at a time,
// rows read again, waves and blocks, split and whole, rows that come ahead, several pieces at once, and rows shared by a cluster of
// blocks where the device has those; all but what has no room in its registers.
std::vector<codegen::Schedule> schedules_for(const codegen::Kernel& kernel, bool clusters = true, const codegen::GpuFacts& facts = {});

}  // namespace keirin::test
