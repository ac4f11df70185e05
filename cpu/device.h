// SPDX-License-Identifier: Apache-2.0
//
// x86-64 as data: what features this machine's CPU has, as usable by the CPU and the operating system, and the levels of
// target.def.
#pragma once

#include "plugins/processor/machine.h"

namespace keirin::cpu {

enum Feature : uint32_t { kAvx2 = 1, kAvx512 = 2, kBf16 = 4, kAmx = 8 };

// Bits of Feature. kAvx2 includes FMA and F16C, kAvx512 the F, BW, DQ, CD and VL parts.
uint32_t usable_features();

const processor::Isa& isa();
processor::Found look(const krn_hw& hardware);

}  // namespace keirin::cpu
