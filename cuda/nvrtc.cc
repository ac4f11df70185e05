// SPDX-License-Identifier: Apache-2.0
//
// The library, its builtins and its options.
#include "cuda/nvrtc.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>

#include "abi/plugin.h"
#include "cuda/driver.h"
#include "plugins/gpu/rtc.h"
#include "plugins/kit/error.h"

namespace keirin::cuda {
namespace {

// NVRTC opens its builtins by bare name: in a folder that no search path names (a Python wheel's) it does not find them, unless
// they are open already. If they are not here, NVRTC may still find them.
void open_builtins(void* nvrtc) {
  auto* version = reinterpret_cast<int (*)(int*, int*)>(dlsym(nvrtc, "nvrtcVersion"));
  int major = 0, minor = 0;
  Dl_info at{};
  if (!version || version(&major, &minor) != 0 || !dladdr(reinterpret_cast<void*>(version), &at) || !at.dli_fname) return;
  const std::string path = at.dli_fname;
  const std::string name = "libnvrtc-builtins.so." + std::to_string(major) + "." + std::to_string(minor);
  dlopen((path.substr(0, path.rfind('/') + 1) + name).c_str(), RTLD_NOW | RTLD_LOCAL);
}

struct Calls {
  using Table = Nvrtc;
  using Program = NvrtcProgram;
  KRN_RTC_SEAM(nvrtc, CUBIN)
  static constexpr const char *kName = "NVRTC", *kFile = "keirin.cu", *kAdvice = "install it or set KEIRIN_NVRTC to its path";
};

const Nvrtc& nvrtc() { return gpu::compiler_of<Calls>(); }

std::string open_nvrtc(Nvrtc& table) {
  std::string why_not, lacks;
  void* library = gpu::open_first({secure_getenv("KEIRIN_NVRTC"), "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}, why_not);
  if (!library) return why_not;
  open_builtins(library);
#define KRN_LOAD(name, ...) &&gpu::take_function(library, #name, table.name, lacks)
  return true KRN_NVRTC(KRN_LOAD) ? "" : "this NVRTC lacks " + lacks;
#undef KRN_LOAD
}

}  // namespace

const Nvrtc* Nvrtc::get(std::string& why_not) {
  static const gpu::Opened<Nvrtc> opened(open_nvrtc);
  return opened.get(why_not);
}

static std::vector<std::string> options_of(const gpu::CodeTarget& t) {
  std::vector<std::string> out = {"--gpu-architecture=" + t.arch, "-default-device", "--std=c++17",
                                  t.contract ? "--fmad=true" : "--fmad=false"};
  if (!t.contract) out.push_back("--define-macro=KRN_STRICT");
  if (t.fast) out.push_back("--use_fast_math");
  return out;
}

std::string nvrtc_identity(const gpu::CodeTarget& target) {
  std::string out = "nvrtc " + nvrtc_version();
  for (const std::string& option : options_of(target)) out += ' ' + option;
  return out;
}

std::string nvrtc_version() {
  int major = 0, minor = 0;
  nvrtc().nvrtcVersion(&major, &minor);
  return std::to_string(major) + "." + std::to_string(minor);
}

std::vector<char> compile_cubin(const std::string& text, const gpu::CodeTarget& target) {
  return gpu::compile_at_run_time<Calls>(text, options_of(target), target.arch);
}

bool compiles_for(const std::string& arch) {
  int count = 0;
  if (nvrtc().nvrtcGetNumSupportedArchs(&count) != 0 || count <= 0) return false;
  std::vector<int> known(count);
  if (nvrtc().nvrtcGetSupportedArchs(known.data()) != 0) return false;
  return std::any_of(known.begin(), known.end(), [&](int k) { return arch == "sm_" + std::to_string(k); });
}

}  // namespace keirin::cuda
