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

struct OpenedNvrtc {
  Nvrtc table;
  std::string why_not;
  bool ok = false;

  OpenedNvrtc() {
    void* library = gpu::open_first({secure_getenv("KEIRIN_NVRTC"), "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}, why_not);
    if (!library) return;
    open_builtins(library);
    std::string lacks;
#define KRN_LOAD(name, ...) &&gpu::take_function(library, #name, table.name, lacks)
    ok = true KRN_NVRTC(KRN_LOAD);
#undef KRN_LOAD
    if (!ok) why_not = "this NVRTC lacks " + lacks;
  }
};

struct Calls {
  using Table = Nvrtc;
  using Program = NvrtcProgram;
  KRN_SEAM(create, nvrtcCreateProgram) KRN_SEAM(compile, nvrtcCompileProgram) KRN_SEAM(log_size, nvrtcGetProgramLogSize)
  KRN_SEAM(log, nvrtcGetProgramLog) KRN_SEAM(code_size, nvrtcGetCUBINSize) KRN_SEAM(code, nvrtcGetCUBIN) KRN_SEAM(destroy, nvrtcDestroyProgram)
  KRN_SEAM(words, nvrtcGetErrorString)
  static constexpr const char *kName = "NVRTC", *kFile = "keirin.cu";
};

const Nvrtc& nvrtc() {
  std::string why_not;
  const Nvrtc* table = Nvrtc::get(why_not);
  if (!table) throw kit::Error(KRN_STATUS_unsupported, "no NVRTC to compile kernels with: " + why_not + "; install it or set KEIRIN_NVRTC to its path");
  return *table;
}

}  // namespace

const Nvrtc* Nvrtc::get(std::string& why_not) {
  static const OpenedNvrtc opened;
  why_not = opened.why_not;
  return opened.ok ? &opened.table : nullptr;
}

static std::vector<std::string> options_of(const gpu::CodeTarget& t) {
  std::vector<std::string> out = {"--gpu-architecture=" + t.arch, "-default-device", "--std=c++17", t.contract ? "--fmad=true" : "--fmad=false"};
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
  return gpu::compile_at_run_time<Calls>(nvrtc(), text, options_of(target), target.arch);
}

bool compiles_for(const std::string& arch) {
  int count = 0;
  if (nvrtc().nvrtcGetNumSupportedArchs(&count) != 0 || count <= 0) return false;
  std::vector<int> known(count);
  if (nvrtc().nvrtcGetSupportedArchs(known.data()) != 0) return false;
  return std::any_of(known.begin(), known.end(), [&](int k) { return arch == "sm_" + std::to_string(k); });
}

}  // namespace keirin::cuda
