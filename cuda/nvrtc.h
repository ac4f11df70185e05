// SPDX-License-Identifier: Apache-2.0
//
// Text to binary: NVRTC makes cubins for one real architecture, no device needed.
#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include "plugins/gpu/driver.h"
#include "plugins/gpu/rtc.h"

namespace keirin::cuda {

// NVRTC's C API, in its own words; declared here because its header travels with a compiler that users do not have.
using NvrtcProgram = struct nvrtc_program_opaque*;
#define KRN_NVRTC(X)                          \
  KRN_RTC(X, nvrtc, CUBIN, NvrtcProgram)      \
  X(nvrtcGetNumSupportedArchs, int (*)(int*)) \
  X(nvrtcGetSupportedArchs, int (*)(int*))

struct Nvrtc {
#define KRN_MEMBER(name, ...) std::type_identity_t<__VA_ARGS__> name = nullptr;
  KRN_NVRTC(KRN_MEMBER)
#undef KRN_MEMBER

  // The process's table, or null with the reason. Looks among the libraries already loaded (LibTorch brings one), then at the
  // loader's path, then at $KEIRIN_NVRTC. Any thread.
  static const Nvrtc* get(std::string& why_not);
};

// Throws kit::Error with the compiler's log.
std::vector<char> compile_cubin(const std::string& text, const gpu::CodeTarget& target);
// The compiler's version and the options that go with a target.
std::string nvrtc_identity(const gpu::CodeTarget& target);
std::string nvrtc_version();
// Whether this NVRTC knows the architecture.
bool compiles_for(const std::string& arch);

}  // namespace keirin::cuda
