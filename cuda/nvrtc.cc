// SPDX-License-Identifier: Apache-2.0
//
// The library, its builtins and its options.
#include "cuda/nvrtc.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "abi/plugin.h"
#include "cuda/driver.h"
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
#define KRN_LOAD(name, ...)                                              \
  table.name = reinterpret_cast<decltype(table.name)>(dlsym(library, #name)); \
  if (!table.name) {                                                     \
    why_not = "this NVRTC lacks " #name;                                 \
    return;                                                              \
  }
    KRN_NVRTC(KRN_LOAD)
#undef KRN_LOAD
    ok = true;
  }
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
  const Nvrtc& api = nvrtc();
  NvrtcProgram program = nullptr;
  if (int result = api.nvrtcCreateProgram(&program, text.c_str(), "keirin.cu", 0, nullptr, nullptr); result != 0)
    throw kit::Error(KRN_STATUS_internal, std::string("nvrtcCreateProgram: ") + api.nvrtcGetErrorString(result));
  std::unique_ptr<NvrtcProgram, void (*)(NvrtcProgram*)> owner(&program, [](NvrtcProgram* p) {
    std::string ignored;
    Nvrtc::get(ignored)->nvrtcDestroyProgram(p);
  });
  const std::vector<std::string> options = options_of(target);
  std::vector<const char*> words;
  for (const std::string& option : options) words.push_back(option.c_str());
  if (int result = api.nvrtcCompileProgram(program, static_cast<int>(words.size()), words.data()); result != 0) {
    size_t size = 0;
    api.nvrtcGetProgramLogSize(program, &size);
    std::string log(size, '\0');
    if (size) api.nvrtcGetProgramLog(program, log.data());
    throw kit::Error(KRN_STATUS_internal, std::string("NVRTC refused generated text for ") + target.arch + ": " +
                                              api.nvrtcGetErrorString(result) + "\n" + log.substr(0, 4000));
  }
  size_t size = 0;
  if (api.nvrtcGetCUBINSize(program, &size) != 0 || size == 0)
    throw kit::Error(KRN_STATUS_internal, "NVRTC gave no cubin for " + target.arch);
  std::vector<char> cubin(size);
  if (api.nvrtcGetCUBIN(program, cubin.data()) != 0) throw kit::Error(KRN_STATUS_internal, "nvrtcGetCUBIN failed");
  return cubin;
}

bool compiles_for(const std::string& arch) {
  int count = 0;
  if (nvrtc().nvrtcGetNumSupportedArchs(&count) != 0 || count <= 0) return false;
  std::vector<int> known(count);
  if (nvrtc().nvrtcGetSupportedArchs(known.data()) != 0) return false;
  return std::any_of(known.begin(), known.end(), [&](int k) { return arch == "sm_" + std::to_string(k); });
}

}  // namespace keirin::cuda
