// SPDX-License-Identifier: Apache-2.0
//
// AArch64 as data: what the words of krn_hw say of a processor (core/host/find/hardware.h has their order), and the levels of target.def.
#pragma once

#include "plugins/processor/machine.h"

namespace keirin::arm {

enum Feature : uint32_t { kAsimd = 1, kFp16 = 2, kDotProduct = 4, kBf16 = 8, kI8mm = 16, kSve = 32, kSve2 = 64 };
inline constexpr uint32_t kN1 = kAsimd | kFp16 | kDotProduct;
inline constexpr uint32_t kV1 = kN1 | kBf16 | kI8mm | kSve;

const processor::Isa& isa();
processor::Found look(const krn_hw& hardware);

}  // namespace keirin::arm
