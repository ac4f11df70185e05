// SPDX-License-Identifier: Apache-2.0
#include "rocm/hiprtc.h"

#include <cstdlib>

#include "abi/plugin.h"
#include "plugins/gpu/rtc.h"
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
    std::string lacks;
#define KRN_LOAD(name, ...) &&gpu::take_function(library, #name, table.name, lacks)
    ok = true KRN_HIPRTC(KRN_LOAD);
#undef KRN_LOAD
    if (!ok) why_not = "this hipRTC lacks " + lacks;
  }
};

struct Calls {
  using Table = Hiprtc;
  using Program = HiprtcProgram;
  KRN_SEAM(create, hiprtcCreateProgram) KRN_SEAM(compile, hiprtcCompileProgram) KRN_SEAM(log_size, hiprtcGetProgramLogSize)
  KRN_SEAM(log, hiprtcGetProgramLog) KRN_SEAM(code_size, hiprtcGetCodeSize) KRN_SEAM(code, hiprtcGetCode) KRN_SEAM(destroy, hiprtcDestroyProgram)
  KRN_SEAM(words, hiprtcGetErrorString)
  static constexpr const char *kName = "hipRTC", *kFile = "keirin.hip";
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
  std::vector<std::string> options = options_of(target);
  options.push_back("--offload-arch=" + target.arch);
  return gpu::compile_at_run_time<Calls>(api, text, options, target.arch);
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
