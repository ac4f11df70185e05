// SPDX-License-Identifier: Apache-2.0
#include "cpu/device.h"

#include <cpuid.h>

#include <cstring>

namespace keirin::cpu {
namespace {

uint64_t os_saved_state() {
  uint32_t a, d;
  __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return (static_cast<uint64_t>(d) << 32) | a;
}

uint32_t detect_features() {
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
  const bool osxsave = c >> 27 & 1, fma = c >> 12 & 1, f16c = c >> 29 & 1;
  if (!osxsave) return 0;
  const uint64_t state = os_saved_state();
  const bool ymm = (state & 0x6) == 0x6, zmm = (state & 0xe6) == 0xe6, tiles = (state & 0x60000) == 0x60000;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
  uint32_t found = 0;
  if (ymm && fma && f16c && (b >> 5 & 1) && (b >> 3 & 1) && (b >> 8 & 1)) found |= kAvx2;
  const uint32_t parts = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;  // F DQ CD BW VL
  if (zmm && (found & kAvx2) && (b & parts) == parts) found |= kAvx512;
  const bool amx = tiles && (d >> 22 & 1) && (d >> 24 & 1);
  if ((found & kAvx512) && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1)) found |= kBf16;
  if (amx) found |= kAmx;
  return found;
}

std::string brand() {
  uint32_t words[12] = {};
  for (uint32_t i = 0; i < 3; ++i) {
    __get_cpuid(0x80000002 + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2], &words[4 * i + 3]);
  }
  char text[49] = {};
  std::memcpy(text, words, 48);
  std::string name(text);
  name.erase(0, name.find_first_not_of(' '));
  return name.empty() ? "x86-64" : name;
}

using codegen::native::Masks;
constexpr processor::Level kLevels[] = {
#include "cpu/target.def"
};

}  // namespace

uint32_t usable_features() {
  static const uint32_t found = detect_features();
  return found;
}

const processor::Isa& isa() {
  static const processor::Isa x86{.triple = "x86_64-unknown-linux-gnu",
                                  .levels = kLevels,
                                  .none = "this CPU lacks AVX2, FMA or F16C, or the operating system does not save their registers",
                                  .bf16 = kBf16};
  return x86;
}

processor::Found look(const krn_hw&) {
  const uint32_t features = usable_features();
  return {.features = features, .name = brand(), .fingerprint = features & kAmx ? "amx bf16" : features & kBf16 ? "bf16" : "none"};
}

}  // namespace keirin::cpu
