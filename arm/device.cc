// SPDX-License-Identifier: Apache-2.0
#include "arm/device.h"

#include <cstdio>

namespace keirin::arm {
namespace {

// Bits of AT_HWCAP and AT_HWCAP2 (Linux, Documentation/arch/arm64/elf_hwcaps), the first two words; then bytes of a scalable vector, and
// MIDR_EL1: implementer in bits 31:24, part in 15:4.
struct Bit {
  Feature feature;
  int word, bit;
};
constexpr Bit kBits[] = {{kAsimd, 0, 1}, {kFp16, 0, 10}, {kDotProduct, 0, 20}, {kSve, 0, 22},
                         {kSve2, 1, 1},  {kI8mm, 1, 13}, {kBf16, 1, 14}};
constexpr int kVectorBytes = 2, kIdentity = 3;

using codegen::native::Masks;
constexpr processor::Level kLevels[] = {
#include "arm/target.def"
};

}  // namespace

const processor::Isa& isa() {
  static const processor::Isa aarch64{.triple = "aarch64-unknown-linux-gnu",
                                      .levels = kLevels,
                                      .none = "this processor has no Advanced SIMD",
                                      .vector_lengths = kSve,
                                      .bf16 = kBf16};
  return aarch64;
}

processor::Found look(const krn_hw& hardware) {
  const uint64_t* words = hardware.cpu_features;
  processor::Found found;
  for (const Bit& b : kBits) found.features |= words[b.word] >> b.bit & 1 ? uint32_t{b.feature} : 0u;
  found.vector_bytes = static_cast<int>(words[kVectorBytes]);
  const auto identity = static_cast<unsigned>(words[kIdentity]);
  char name[64];
  std::snprintf(name, sizeof name, "AArch64 (implementer 0x%02x, part 0x%03x)", identity >> 24 & 0xff, identity >> 4 & 0xfff);
  found.name = name;
  found.fingerprint = found.vector_bytes ? "sve " + std::to_string(8 * found.vector_bytes) : "none";
  return found;
}

}  // namespace keirin::arm
