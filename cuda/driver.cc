// SPDX-License-Identifier: Apache-2.0
#include "cuda/driver.h"

#include <dlfcn.h>

#include "abi/plugin.h"
#include "plugins/gpu/driver.h"
#include "plugins/kit/error.h"

namespace keirin::cuda {
namespace {

struct OpenedDriver {
  DriverApi table;
  std::string why_not;
  bool ok = false;

  OpenedDriver() {
    void* library = gpu::open_first({"libcuda.so.1"}, why_not);
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

const DriverApi* DriverApi::get(std::string& why_not) {
  static const OpenedDriver opened;
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
  if (const DriverApi* driver = DriverApi::get(ignored)) driver->cuGetErrorString(result, &text);
  throw kit::Error(code_of(result), std::string(what) + ": " + (text ? text : "unknown CUDA error"));
}

}  // namespace keirin::cuda
