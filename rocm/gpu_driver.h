// SPDX-License-Identifier: Apache-2.0
//
// HIP and hipRTC behind plugins/gpu's seam, and the kernel words that only AMD's compiler knows.
#pragma once

#include "plugins/gpu/driver.h"

namespace keirin::rocm {

// For waves of 32 or 64 threads; never destroyed. Compiles where there is hipRTC; the rest needs a device.
const gpu::Driver& gpu_driver(int wave);
// The same, compiled by clang where no device is (clang.h).
const gpu::Driver& clang_driver(int wave);

// Vector registers that the kernels of a code object keep in memory, as its notes say; -1: it has no such note.
int64_t spilled_registers(const std::vector<char>& code);

}  // namespace keirin::rocm
