// SPDX-License-Identifier: Apache-2.0
#include "rocm/hiprtc.h"

#include <dlfcn.h>

#include <cstdlib>
#include <memory>

#include "abi/plugin.h"
#include "plugins/kit/error.h"
#include "rocm/device.h"
#include "rocm/driver.h"

namespace keirin::rocm {
namespace {

struct OpenedHiprtc {
  Hiprtc table;
  std::string why_not;
  bool ok = false;

  OpenedHiprtc() {
    // Before 5.3 hipRTC is a part of libamdhip64.
    void* library = gpu::open_first({secure_getenv("KEIRIN_HIPRTC"), "libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5",
                                "libhiprtc.so", "libamdhip64.so.5", "libamdhip64.so"},
                               why_not);
    if (!library) return;
#define KRN_LOAD(name, ...)                                                   \
  table.name = reinterpret_cast<decltype(table.name)>(dlsym(library, #name)); \
  if (!table.name) {                                                          \
    why_not = "this hipRTC lacks " #name;                                     \
    return;                                                                   \
  }
    KRN_HIPRTC(KRN_LOAD)
#undef KRN_LOAD
    ok = true;
  }
};

const Hiprtc& hiprtc() {
  std::string why_not;
  const Hiprtc* table = Hiprtc::get(why_not);
  if (!table)
    throw kit::Error(KRN_STATUS_unsupported, "no hipRTC to compile kernels with: " + why_not +
                                                 "; install ROCm's hiprtc or set KEIRIN_HIPRTC to its path");
  return *table;
}

}  // namespace

const Hiprtc* Hiprtc::get(std::string& why_not) {
  static const OpenedHiprtc opened;
  why_not = opened.why_not;
  return opened.ok ? &opened.table : nullptr;
}

std::vector<std::string> options_of(const gpu::CodeTarget& t) {
  std::vector<std::string> out = {"-std=c++17", "-O3", "-w", "-DKRN_WAVE=" + std::to_string(wave_of(t.arch)),
                                  t.contract ? "-ffp-contract=fast" : "-ffp-contract=off"};
  if (!t.contract) out.push_back("-DKRN_STRICT");
  if (t.fast) out.push_back("-fno-hip-fp32-correctly-rounded-divide-sqrt");
  return out;
}

std::string hiprtc_identity(const gpu::CodeTarget& target) {
  std::string out = "hiprtc " + hip_version() + " " + target.arch;
  for (const std::string& option : options_of(target)) out += ' ' + option;
  return out;
}

std::string hip_version() {
  std::string ignored;
  const DriverApi* driver = DriverApi::get(ignored);
  return driver ? std::to_string(driver->version / 100) + "." + std::to_string(driver->version % 100) : "";
}

std::vector<char> compile_object(const std::string& text, const gpu::CodeTarget& target) {
  const Hiprtc& api = hiprtc();
  std::string why_not;
  if (!compiles_for(target.arch, why_not)) throw kit::Error(KRN_STATUS_unsupported, why_not);
  HiprtcProgram program = nullptr;
  if (int result = api.hiprtcCreateProgram(&program, text.c_str(), "keirin.hip", 0, nullptr, nullptr); result != 0)
    throw kit::Error(KRN_STATUS_internal, std::string("hiprtcCreateProgram: ") + api.hiprtcGetErrorString(result));
  const std::unique_ptr<HiprtcProgram, int (*)(HiprtcProgram*)> owner(&program, api.hiprtcDestroyProgram);
  std::vector<std::string> options = options_of(target);
  options.push_back("--offload-arch=" + target.arch);
  std::vector<const char*> words;
  for (const std::string& option : options) words.push_back(option.c_str());
  if (int result = api.hiprtcCompileProgram(program, static_cast<int>(words.size()), words.data()); result != 0) {
    size_t size = 0;
    api.hiprtcGetProgramLogSize(program, &size);
    std::string log(size, '\0');
    if (size) api.hiprtcGetProgramLog(program, log.data());
    throw kit::Error(KRN_STATUS_internal, "hipRTC refused generated text for " + target.arch + ": " +
                                              api.hiprtcGetErrorString(result) + "\n" + log.substr(0, 4000));
  }
  size_t size = 0;
  if (api.hiprtcGetCodeSize(program, &size) != 0 || size == 0)
    throw kit::Error(KRN_STATUS_internal, "hipRTC gave no code for " + target.arch);
  std::vector<char> code(size);
  if (api.hiprtcGetCode(program, code.data()) != 0) throw kit::Error(KRN_STATUS_internal, "hiprtcGetCode failed");
  return code;
}

bool compiles_for(const std::string& arch, std::string& why_not) {
  const Target* target = target_named(arch);
  if (!target) return why_not = "no row for the instruction set " + arch, false;
  const DriverApi* driver = DriverApi::get(why_not);
  if (!driver) return false;
  if (driver->version >= target->since) return true;
  why_not = "hipRTC " + hip_version() + " does not know " + arch + "; HIP " + std::to_string(target->since / 100) +
            "." + std::to_string(target->since % 100) + " and later do";
  return false;
}

}  // namespace keirin::rocm
