// SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver and NVRTC behind plugins/gpu's seam, and the kernel words that only NVIDIA's compiler knows.
#pragma once

#include "plugins/gpu/driver.h"

namespace keirin::cuda {

// Never destroyed. Compiles where there is NVRTC; the rest needs the driver.
const gpu::Driver& gpu_driver();

// Instructions of 16x8x16 in bf16 and f16 with sums in f32: compute capability 8.0 and later.
const gpu::MatrixUnit& matrix_unit();

}  // namespace keirin::cuda
