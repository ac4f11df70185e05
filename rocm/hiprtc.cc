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

struct Calls {
  using Table = Hiprtc;
  using Program = HiprtcProgram;
  KRN_RTC_SEAM(hiprtc, Code)
  static constexpr const char *kName = "hipRTC", *kFile = "keirin.hip",
                              *kAdvice = "install ROCm's hiprtc or set KEIRIN_HIPRTC to its path";
};

// Before 5.3 hipRTC is a part of libamdhip64.
std::string open_hiprtc(Hiprtc& table) {
  std::string why_not, lacks;
  void* library = gpu::open_first({secure_getenv("KEIRIN_HIPRTC"), "libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "libhiprtc.so",
                                   "libamdhip64.so.5", "libamdhip64.so"},
                                  why_not);
  if (!library) return why_not;
#define KRN_LOAD(name, ...) &&gpu::take_function(library, #name, table.name, lacks)
  return true KRN_HIPRTC(KRN_LOAD) ? "" : "this hipRTC lacks " + lacks;
#undef KRN_LOAD
}

}  // namespace

const Hiprtc* Hiprtc::get(std::string& why_not) {
  static const gpu::Opened<Hiprtc> opened(open_hiprtc);
  return opened.get(why_not);
}

std::vector<std::string> options_of(const gpu::CodeTarget& t) {
  std::vector<std::string> out = {"-std=c++17", "-O3", "-w", "-DKRN_WAVE=" + std::to_string(wave_of(t.arch)),
                                  t.contract ? "-ffp-contract=fast" : "-ffp-contract=off"};
  if (const Target* target = target_named(t.arch)) out.push_back(std::string("-DKRN_UNIT_") + target->unit);
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
  std::string why_not;
  if (gpu::compiler_of<Calls>(); !compiles_for(target.arch, why_not)) throw kit::Error(KRN_STATUS_unsupported, why_not);
  std::vector<std::string> options = options_of(target);
  options.push_back("--offload-arch=" + target.arch);
  return gpu::compile_at_run_time<Calls>(text, options, target.arch);
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
