// SPDX-License-Identifier: Apache-2.0
//
// HIP's functions that the AMD plugin calls, over the CUDA driver: numbers of results are HIP's own where they are read, and the
// driver's are those (HIP took them over).
#include <cstdio>
#include <cstring>
#include <string>

#include "cuda/driver.h"

#define STANDIN extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kNoDevice = 100, kInvalidValue = 1;

const keirin::cuda::DriverApi* driver() {
  std::string ignored;
  static const keirin::cuda::DriverApi* table = keirin::cuda::DriverApi::get(ignored);
  return table;
}

// A call of the driver; without one there is no device.
template <class Function, class... Arguments>
int call(Function keirin::cuda::DriverApi::*function, Arguments... arguments) {
  return driver() ? static_cast<int>((driver()->*function)(arguments...)) : kNoDevice;
}
using D = keirin::cuda::DriverApi;

CUdeviceptr address(const void* p) { return reinterpret_cast<CUdeviceptr>(p); }

// HIP gives a block what it asks for; CUDA wants to be asked before where that is more than 48 KB, with what the text declares.
int give_shared(CUfunction function, unsigned bytes) {
  if (bytes == 0) return 0;
  return call(&D::cuFuncSetAttribute, function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, static_cast<int>(bytes));
}

}  // namespace

STANDIN int hipInit(unsigned flags) { return flags != 0 ? kInvalidValue : driver() ? 0 : kNoDevice; }
STANDIN int hipRuntimeGetVersion(int* version) { return *version = 70000000, 0; }
STANDIN int hipGetDeviceCount(int* count) { return call(&D::cuDeviceGetCount, count); }
STANDIN int hipDeviceGet(int* device, int number) { return call(&D::cuDeviceGet, device, number); }
STANDIN int hipGetDevice(int* device) { return call(&D::cuCtxGetDevice, device); }
STANDIN int hipDeviceGetName(char* name, int bytes, int device) {
  std::snprintf(name, static_cast<size_t>(bytes), "a stand-in over CUDA device %d", device);
  return 0;
}
STANDIN int hipDeviceTotalMem(size_t* bytes, int device) { return call(&D::cuDeviceTotalMem, bytes, device); }
STANDIN int hipDeviceGetPCIBusId(char* text, int bytes, int device) { return call(&D::cuDeviceGetPCIBusId, text, bytes, device); }

// By HIP's numbers of attributes.
STANDIN int hipDeviceGetAttribute(int* value, int attribute, int device) {
  switch (attribute) {
    case 5: return call(&D::cuDeviceGetAttribute, value, CU_DEVICE_ATTRIBUTE_CLOCK_RATE, device);
    case 19: return call(&D::cuDeviceGetAttribute, value, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device);
    case 57: return call(&D::cuDeviceGetAttribute, value, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device);
    case 59: return call(&D::cuDeviceGetAttribute, value, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, device);
    case 60: return call(&D::cuDeviceGetAttribute, value, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, device);
    case 63: return call(&D::cuDeviceGetAttribute, value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    case 74: return *value = 64 << 10, 0;
    case 87: return *value = 32, 0;
    default: return kInvalidValue;
  }
}

// The struct of HIP 6 and later has the instruction set somewhere behind a byte 0.
STANDIN int hipGetDevicePropertiesR0600(void* properties, int) {
  constexpr size_t kBytes = 1472, kName = 1160;
  std::memset(properties, 0, kBytes);
  std::strcpy(static_cast<char*>(properties) + kName, "gfx1100");
  return 0;
}

STANDIN int hipDevicePrimaryCtxRetain(CUcontext* context, int device) { return call(&D::cuDevicePrimaryCtxRetain, context, device); }
STANDIN int hipDevicePrimaryCtxRelease(int device) { return call(&D::cuDevicePrimaryCtxRelease, device); }
STANDIN int hipCtxGetCurrent(CUcontext* context) { return call(&D::cuCtxGetCurrent, context); }
STANDIN int hipCtxSetCurrent(CUcontext context) { return call(&D::cuCtxSetCurrent, context); }
STANDIN const char* hipGetErrorString(int result) {
  const char* text = nullptr;
  if (driver()) driver()->cuGetErrorString(static_cast<CUresult>(result), &text);
  return text ? text : "no words for this number";
}

STANDIN int hipModuleLoadData(CUmodule* module, const void* code) { return call(&D::cuModuleLoadData, module, code); }
STANDIN int hipModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return call(&D::cuModuleGetFunction, function, module, name);
}
STANDIN int hipModuleLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                  unsigned shared, CUstream stream, void** arguments, void** extra) {
  if (const int result = give_shared(function, shared); result != 0) return result;
  return call(&D::cuLaunchKernel, function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra);
}
STANDIN int hipModuleLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                             unsigned bz, unsigned shared, CUstream stream, void** arguments) {
  if (const int result = give_shared(function, shared); result != 0) return result;
  return call(&D::cuLaunchCooperativeKernel, function, gx, gy, gz, bx, by, bz, shared, stream, arguments);
}

STANDIN int hipMalloc(void** memory, size_t bytes) { return call(&D::cuMemAlloc, reinterpret_cast<CUdeviceptr*>(memory), bytes); }
STANDIN int hipFree(void* memory) { return call(&D::cuMemFree, address(memory)); }
STANDIN int hipMallocAsync(void** memory, size_t bytes, CUstream stream) {
  return call(&D::cuMemAllocAsync, reinterpret_cast<CUdeviceptr*>(memory), bytes, stream);
}
STANDIN int hipFreeAsync(void* memory, CUstream stream) { return call(&D::cuMemFreeAsync, address(memory), stream); }
STANDIN int hipMemsetD8Async(void* memory, unsigned char value, size_t bytes, CUstream stream) {
  return call(&D::cuMemsetD8Async, address(memory), value, bytes, stream);
}
STANDIN int hipMemsetD32Async(void* memory, int value, size_t words, CUstream stream) {
  return call(&D::cuMemsetD32Async, address(memory), static_cast<unsigned>(value), words, stream);
}
STANDIN int hipMemcpyDtoDAsync(void* to, void* from, size_t bytes, CUstream stream) {
  return call(&D::cuMemcpyDtoDAsync, address(to), address(from), bytes, stream);
}
STANDIN int hipMemcpyDtoHAsync(void* to, void* from, size_t bytes, CUstream stream) {
  return call(&D::cuMemcpyDtoHAsync, to, address(from), bytes, stream);
}

STANDIN int hipStreamCreateWithFlags(CUstream* stream, unsigned flags) { return call(&D::cuStreamCreate, stream, flags); }
STANDIN int hipStreamDestroy(CUstream stream) { return call(&D::cuStreamDestroy, stream); }
STANDIN int hipStreamSynchronize(CUstream stream) { return call(&D::cuStreamSynchronize, stream); }
STANDIN int hipStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) { return call(&D::cuStreamIsCapturing, stream, status); }
STANDIN int hipThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) { return call(&D::cuThreadExchangeStreamCaptureMode, mode); }
STANDIN int hipEventCreateWithFlags(CUevent* event, unsigned flags) { return call(&D::cuEventCreate, event, flags); }
STANDIN int hipEventDestroy(CUevent event) { return call(&D::cuEventDestroy, event); }
STANDIN int hipEventRecord(CUevent event, CUstream stream) { return call(&D::cuEventRecord, event, stream); }
STANDIN int hipEventQuery(CUevent event) { return call(&D::cuEventQuery, event); }
STANDIN int hipEventSynchronize(CUevent event) { return call(&D::cuEventSynchronize, event); }
STANDIN int hipEventElapsedTime(float* ms, CUevent start, CUevent stop) { return call(&D::cuEventElapsedTime, ms, start, stop); }
