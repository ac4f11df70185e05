// SPDX-License-Identifier: Apache-2.0
#include "arm/device.h"

#include <sys/auxv.h>
#include <sys/prctl.h>

namespace keirin::arm {
namespace {

// Bits of the auxiliary vector's words (Linux, Documentation/arch/arm64/elf_hwcaps).
struct Bit {
  Feature feature;
  unsigned long word, bit;
};
constexpr Bit kBits[] = {{kAsimd, AT_HWCAP, 1}, {kFp16, AT_HWCAP, 10}, {kDotProduct, AT_HWCAP, 20}, {kSve, AT_HWCAP, 22},
                         {kSve2, AT_HWCAP2, 1}, {kI8mm, AT_HWCAP2, 13}, {kBf16, AT_HWCAP2, 14}};
constexpr unsigned long kReadsId = 1ul << 11;  // in AT_HWCAP: the kernel answers reads of identification registers

// A processor by implementer and part (MIDR_EL1, bits 31:24 and 15:4), for people.
struct Core {
  uint32_t implementer, part;
  const char* name;
};
constexpr Core kCores[] = {
    {0x41, 0xd0c, "Neoverse N1"}, {0x41, 0xd40, "Neoverse V1"}, {0x41, 0xd49, "Neoverse N2"}, {0x41, 0xd4f, "Neoverse V2"},
    {0x41, 0xd08, "Cortex-A72"},  {0x61, 0, "Apple"},           {0xc0, 0, "Ampere"},
};

std::string name_of_core() {
  if (!(getauxval(AT_HWCAP) & kReadsId)) return "AArch64";
  uint64_t id;
  __asm__("mrs %0, MIDR_EL1" : "=r"(id));
  const uint32_t implementer = id >> 24 & 0xff, part = id >> 4 & 0xfff;
  for (const Core& core : kCores) {
    if (core.implementer == implementer && (core.part == part || core.part == 0)) return core.name;
  }
  return "AArch64";
}

// Bytes of a scalable vector as the operating system set them for this process; 0 without SVE.
int vector_bytes() {
  const int length = prctl(PR_SVE_GET_VL);
  return length < 0 ? 0 : length & PR_SVE_VL_LEN_MASK;
}

constexpr processor::Level kLevels[] = {
#define KRN_LEVEL(name, cpu, features, lanes, masks, needs, gflops, special, bytes_per_s) \
  {name, cpu, features, lanes, codegen::native::Masks::masks, needs, gflops, special, bytes_per_s},
#include "arm/target.def"
#undef KRN_LEVEL
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

processor::Found look() {
  processor::Found found;
  for (const Bit& b : kBits) found.features |= getauxval(b.word) >> b.bit & 1 ? uint32_t{b.feature} : 0u;
  if (found.features & kSve) found.vector_bytes = vector_bytes();
  if (found.vector_bytes < 16) found.features &= ~static_cast<uint32_t>(kSve | kSve2);
  found.name = name_of_core();
  found.fingerprint = found.vector_bytes ? "sve " + std::to_string(8 * found.vector_bytes) : "none";
  return found;
}

}  // namespace keirin::arm
