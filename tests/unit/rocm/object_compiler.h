// SPDX-License-Identifier: Apache-2.0
//
// Code objects for instruction sets that no machine here has: by hipRTC where its release knows the set (in a child,
// because hipRTC ends the process on others), else by clang with the device library; and what their metadata says.
#pragma once

#include <string>
#include <vector>

namespace keirin::test {

struct KernelFacts {
  std::string symbol;
  int vgprs = 0, sgprs = 0, wave = 0;
  int spills = 0;  // of vector registers, to memory
  int parked = 0;  // scalar registers in lanes of vector registers
  int scratch_bytes = 0, shared_bytes = 0;
};

// "hiprtc 5.2", "clang-19" or "clang-22"; "" with the reason where neither compiles for it.
std::string object_compiler(const std::string& arch, std::string& why_not);
// Writes a linked code object to `path` with that compiler. Empty, or what went wrong.
std::string compile_object_file(const std::string& text, const std::string& arch, const std::string& compiler,
                                const std::string& path);
// Empty where the file cannot be read.
std::vector<KernelFacts> facts_of(const std::string& path);
// Waves that fit on a vector unit, by registers alone.
int waves_by_registers(const std::string& arch, int vgprs);

}  // namespace keirin::test
