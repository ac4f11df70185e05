// SPDX-License-Identifier: Apache-2.0
//
// Text to code objects: hipRTC makes them for one instruction set, no device needed. A release that does not know a set
// ends the process when asked for it, so it is asked only for those that target.def gives to its release.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "plugins/gpu/driver.h"
#include "plugins/gpu/rtc.h"

namespace keirin::rocm {

using HiprtcProgram = struct hiprtc_program_opaque*;
#define KRN_HIPRTC(X) KRN_RTC(X, hiprtc, Code, HiprtcProgram)

struct Hiprtc {
#define KRN_MEMBER(name, ...) std::type_identity_t<__VA_ARGS__> name = nullptr;
  KRN_HIPRTC(KRN_MEMBER)
#undef KRN_MEMBER

  // The process's table, or null with the reason. Looks at $KEIRIN_HIPRTC, among the libraries already loaded (LibTorch
  // brings one), then at the loader's path. Any thread.
  static const Hiprtc* get(std::string& why_not);
};

// Throws kit::Error with the compiler's log; `unsupported` for an instruction set that this release does not know.
std::vector<char> compile_object(const std::string& text, const gpu::CodeTarget& target);
// The compiler's version and the options that go with a target.
std::string hiprtc_identity(const gpu::CodeTarget& target);
std::string hip_version();  // "5.2"; "" where there is no libamdhip64
// By target.def's `since`.
bool compiles_for(const std::string& arch, std::string& why_not);
// What any clang takes as well.
std::vector<std::string> options_of(const gpu::CodeTarget& target);

}  // namespace keirin::rocm
