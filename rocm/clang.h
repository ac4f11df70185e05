// SPDX-License-Identifier: Apache-2.0
//
// Text to code objects by a plain clang and ROCm's device library, for instruction sets that the hipRTC here does not know: for looking
// at code (--imagine, tests), never for a device that is there. Needs no ROCm but the library (Debian: rocm-device-libs; clang-19 and
// lld-19, or 22 of both where a set is newer).
#pragma once

#include <string>
#include <vector>

#include "plugins/gpu/driver.h"

namespace keirin::rocm {

// "clang-19", or what else there is by that name; empty with the reason.
std::string clang_for(const std::string& arch, std::string& why_not);
// Throws kit::Error with the compiler's words.
std::vector<char> compile_by_clang(const std::string& text, const gpu::CodeTarget& target);

}  // namespace keirin::rocm
