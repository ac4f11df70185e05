// SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver as a table of functions opened at run time: a machine without it loads this plugin, which then says
// why it offers nothing. Nothing here links against CUDA; cuda.h is used for its types. What it is not: the CUDA runtime API,
// which the plugin never calls, so that it stays in LibTorch's primary context.
#pragma once

#include <cuda.h>

#include <string>
#include <type_traits>

namespace keirin::cuda {

// name(result, symbol in the library). The _v2 symbols are what cuda.h maps the plain names to.
#define KRN_CUDA_DRIVER(X)                                  \
  X(cuInit, "cuInit")                                       \
  X(cuDriverGetVersion, "cuDriverGetVersion")               \
  X(cuDeviceGetCount, "cuDeviceGetCount")                   \
  X(cuDeviceGet, "cuDeviceGet")                             \
  X(cuDeviceGetName, "cuDeviceGetName")                     \
  X(cuDeviceGetAttribute, "cuDeviceGetAttribute")           \
  X(cuDeviceTotalMem, "cuDeviceTotalMem_v2")                \
  X(cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId")             \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")   \
  X(cuMemGetInfo, "cuMemGetInfo_v2")                        \
  X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2") \
  X(cuCtxGetCurrent, "cuCtxGetCurrent")                     \
  X(cuCtxSetCurrent, "cuCtxSetCurrent")                     \
  X(cuCtxGetDevice, "cuCtxGetDevice")                       \
  X(cuGetErrorString, "cuGetErrorString")                   \
  X(cuModuleLoadData, "cuModuleLoadData")                   \
  X(cuModuleUnload, "cuModuleUnload")                       \
  X(cuModuleGetFunction, "cuModuleGetFunction")             \
  X(cuFuncSetAttribute, "cuFuncSetAttribute")               \
  X(cuLaunchKernel, "cuLaunchKernel")                       \
  X(cuLaunchKernelEx, "cuLaunchKernelEx")                   \
  X(cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel") \
  X(cuStreamIsCapturing, "cuStreamIsCapturing")             \
  X(cuMemAlloc, "cuMemAlloc_v2")                            \
  X(cuMemFree, "cuMemFree_v2")                              \
  X(cuMemAllocAsync, "cuMemAllocAsync")                     \
  X(cuMemFreeAsync, "cuMemFreeAsync")                       \
  X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2")              \
  X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2")              \
  X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2")              \
  X(cuMemsetD8Async, "cuMemsetD8Async")                     \
  X(cuMemsetD32Async, "cuMemsetD32Async")                   \
  X(cuStreamCreate, "cuStreamCreate")                       \
  X(cuStreamDestroy, "cuStreamDestroy_v2")                  \
  X(cuStreamSynchronize, "cuStreamSynchronize")             \
  X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode") \
  X(cuStreamBeginCapture, "cuStreamBeginCapture_v2")        \
  X(cuStreamEndCapture, "cuStreamEndCapture")               \
  X(cuGraphInstantiate, "cuGraphInstantiateWithFlags")      \
  X(cuGraphLaunch, "cuGraphLaunch")                         \
  X(cuGraphDestroy, "cuGraphDestroy")                       \
  X(cuGraphExecDestroy, "cuGraphExecDestroy")               \
  X(cuEventCreate, "cuEventCreate")                         \
  X(cuEventDestroy, "cuEventDestroy_v2")                    \
  X(cuEventRecord, "cuEventRecord")                         \
  X(cuEventQuery, "cuEventQuery")                           \
  X(cuEventSynchronize, "cuEventSynchronize")               \
  X(cuEventElapsedTime, "cuEventElapsedTime")

struct DriverApi {
#define KRN_MEMBER(name, symbol) decltype(&::name) name = nullptr;
  KRN_CUDA_DRIVER(KRN_MEMBER)
#undef KRN_MEMBER

  // The process's table, or null with the reason ("libcuda.so.1 is not installed"). Any thread.
  static const DriverApi* get(std::string& why_not);
};

// Throws kit::Error with the driver's own words unless `result` is success. device_lost for the errors after which a context
// cannot be used again.
void check(CUresult result, const char* what);
// The status code that goes with a result, for the run path, which throws nothing.
int32_t code_of(CUresult result);

}  // namespace keirin::cuda
