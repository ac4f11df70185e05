// SPDX-License-Identifier: Apache-2.0
#include "cuda/driver.h"

#include <dlfcn.h>

#include <cstdlib>

#include "abi/plugin.h"
#include "plugins/kit/error.h"

namespace keirin::cuda {
namespace {

// The first name that opens; libraries that the process holds already come first, so that one copy is shared.
void* open_first(std::initializer_list<const char*> names, std::string& why_not) {
  for (int flags : {RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL})
    for (const char* name : names)
      if (name && *name)
        if (void* library = dlopen(name, flags)) return library;
  const char* text = dlerror();
  why_not = text ? text : "not found";
  return nullptr;
}

struct OpenedDriver {
  Driver table;
  std::string why_not;
  bool ok = false;

  OpenedDriver() {
    void* library = open_first({"libcuda.so.1"}, why_not);
    if (!library) return;
#define KRN_LOAD(name, symbol)                                                        \
  table.name = reinterpret_cast<decltype(table.name)>(dlsym(library, symbol));        \
  if (!table.name) {                                                                  \
    why_not = "the NVIDIA driver is too old: it lacks " symbol;                       \
    return;                                                                           \
  }
    KRN_CUDA_DRIVER(KRN_LOAD)
#undef KRN_LOAD
    if (CUresult result = table.cuInit(0); result != CUDA_SUCCESS) {
      const char* text = nullptr;
      table.cuGetErrorString(result, &text);
      why_not = std::string("cuInit: ") + (text ? text : "failed");
      return;
    }
    ok = true;
  }
};

// NVRTC opens its builtins by bare name: in a folder that no search path names (a Python wheel's) it does not find them, unless
// they are open already. Not to find them here is no error: NVRTC may know better.
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
    void* library = open_first({secure_getenv("KEIRIN_NVRTC"), "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}, why_not);
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

bool loses_device(CUresult result) {
  switch (result) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_DEVICE_UNAVAILABLE: return true;
    default: return false;
  }
}

}  // namespace

const Driver* Driver::get(std::string& why_not) {
  static const OpenedDriver opened;
  why_not = opened.why_not;
  return opened.ok ? &opened.table : nullptr;
}

const Nvrtc* Nvrtc::get(std::string& why_not) {
  static const OpenedNvrtc opened;
  why_not = opened.why_not;
  return opened.ok ? &opened.table : nullptr;
}

int32_t code_of(CUresult result) {
  if (result == CUDA_SUCCESS) return KRN_STATUS_ok;
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return KRN_STATUS_exhausted;
  return loses_device(result) ? KRN_STATUS_device_lost : KRN_STATUS_internal;
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::string ignored;
  const char* text = nullptr;
  if (const Driver* driver = Driver::get(ignored)) driver->cuGetErrorString(result, &text);
  throw kit::Error(code_of(result), std::string(what) + ": " + (text ? text : "unknown CUDA error"));
}

}  // namespace keirin::cuda
