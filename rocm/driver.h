// SPDX-License-Identifier: Apache-2.0
//
// The HIP driver functions as a table opened at run time and declared in our own words: a machine without ROCm builds
// and loads this plugin, which then says why it offers nothing. What it is not: the part of HIP that needs its
// compiler; kernels come by hipRTC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace keirin::rocm {

using HipStream = struct hip_stream_opaque*;
using HipEvent = struct hip_event_opaque*;
using HipFunction = struct hip_function_opaque*;
using HipModule = struct hip_module_opaque*;
using HipContext = struct hip_context_opaque*;

enum HipResult : int {
  kSuccess = 0,
  kOutOfMemory = 2,
  kEccUncorrectable = 214,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchTimeOut = 702,
  kContextDestroyed = 709,
  kAssert = 710,
  kLaunchFailure = 719,
  kNotSupported = 801,
};

enum HipAttribute : int {
  kClockRate = 5,
  kL2CacheSize = 19,
  kMaxThreadsPerUnit = 57,
  kMemoryBusWidth = 59,
  kMemoryClockRate = 60,
  kNumUnits = 63,
  kMaxSharedPerBlock = 74,
  kWave = 87,
};

enum HipFlag : unsigned { kStreamNonBlocking = 1, kEventDisableTiming = 2 };
enum HipCapture : int { kNotCapturing = 0, kRelaxed = 2 };

// name, type: every release since 5.2 has these.
#define KRN_HIP(X)                                                                                                    \
  X(hipInit, int (*)(unsigned))                                                                                       \
  X(hipRuntimeGetVersion, int (*)(int*))                                                                              \
  X(hipGetDeviceCount, int (*)(int*))                                                                                 \
  X(hipDeviceGet, int (*)(int*, int))                                                                                 \
  X(hipGetDevice, int (*)(int*))                                                                                      \
  X(hipDeviceGetName, int (*)(char*, int, int))                                                                       \
  X(hipDeviceGetAttribute, int (*)(int*, int, int))                                                                   \
  X(hipDeviceTotalMem, int (*)(size_t*, int))                                                                         \
  X(hipDeviceGetPCIBusId, int (*)(char*, int, int))                                                                   \
  X(hipDevicePrimaryCtxRetain, int (*)(HipContext*, int))                                                             \
  X(hipDevicePrimaryCtxRelease, int (*)(int))                                                                         \
  X(hipCtxGetCurrent, int (*)(HipContext*))                                                                           \
  X(hipCtxSetCurrent, int (*)(HipContext))                                                                            \
  X(hipGetErrorString, const char* (*)(int))                                                                          \
  X(hipModuleLoadData, int (*)(HipModule*, const void*))                                                              \
  X(hipModuleGetFunction, int (*)(HipFunction*, HipModule, const char*))                                              \
  X(hipModuleLaunchKernel, int (*)(HipFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
                                   HipStream, void**, void**))                                                        \
  X(hipMalloc, int (*)(void**, size_t))                                                                               \
  X(hipFree, int (*)(void*))                                                                                          \
  X(hipMallocAsync, int (*)(void**, size_t, HipStream))                                                               \
  X(hipFreeAsync, int (*)(void*, HipStream))                                                                          \
  X(hipMemsetD8Async, int (*)(void*, unsigned char, size_t, HipStream))                                               \
  X(hipMemsetD32Async, int (*)(void*, int, size_t, HipStream))                                                        \
  X(hipMemcpyDtoDAsync, int (*)(void*, void*, size_t, HipStream))                                                     \
  X(hipMemcpyDtoHAsync, int (*)(void*, void*, size_t, HipStream))                                                     \
  X(hipStreamCreateWithFlags, int (*)(HipStream*, unsigned))                                                          \
  X(hipStreamDestroy, int (*)(HipStream))                                                                             \
  X(hipStreamSynchronize, int (*)(HipStream))                                                                         \
  X(hipStreamIsCapturing, int (*)(HipStream, int*))                                                                   \
  X(hipThreadExchangeStreamCaptureMode, int (*)(int*))                                                                \
  X(hipEventCreateWithFlags, int (*)(HipEvent*, unsigned))                                                            \
  X(hipEventDestroy, int (*)(HipEvent))                                                                               \
  X(hipEventRecord, int (*)(HipEvent, HipStream))                                                                     \
  X(hipEventQuery, int (*)(HipEvent))                                                                                 \
  X(hipEventSynchronize, int (*)(HipEvent))                                                                           \
  X(hipEventElapsedTime, int (*)(float*, HipEvent, HipEvent))

struct DriverApi {
#define KRN_MEMBER(name, ...) std::type_identity_t<__VA_ARGS__> name = nullptr;
  KRN_HIP(KRN_MEMBER)
#undef KRN_MEMBER
  // Of newer releases; null in older ones.
  int (*hipModuleLaunchCooperativeKernel)(HipFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                          unsigned, HipStream, void**) = nullptr;
  // Fills a struct whose layout depends on the release (gcn_name).
  int (*properties)(void*, int) = nullptr;
  int version = 0;  // of the runtime: 100 * major + minor

  // The process's table, or null with the reason. A device need not be there. Any thread.
  static const DriverApi* get(std::string& why_not);
  // The same, and there is a driver and a device.
  static const DriverApi* with_device(std::string& why_not);
};

// "gfx90a:sramecc+:xnack-" of a device; "" if the library does not say.
std::string gcn_name(const DriverApi& driver, int device);
int32_t code_of(int result);

}  // namespace keirin::rocm
