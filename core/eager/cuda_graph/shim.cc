// SPDX-License-Identifier: Apache-2.0
//
// LibTorch's own CUDA graph behind a C table: recording goes through its private memory pool and its graph-safe random
// generators, which the driver's capture alone would not give. A library of its own, opened at run time after libtorch_cuda, so
// that nothing else of Keirin needs a CUDA header or library. No exception leaves it.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <memory>
#include <string>

#include "core/eager/cuda_graph/shim.h"

namespace {

struct Recording {
  at::cuda::CUDAGraph graph;
  std::unique_ptr<c10::cuda::CUDAStreamGuard> guard;  // while recording
};

thread_local std::string last_error;

template <class F>
int guarded(F&& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
    return 1;
  }
}

void* create(int device) {
  void* out = nullptr;
  guarded([&] {
    c10::cuda::CUDAGuard on(static_cast<c10::DeviceIndex>(device));
    out = new Recording;
  });
  return out;
}

int begin(void* recording, int device) {
  auto* r = static_cast<Recording*>(recording);
  return guarded([&] {
    // The legacy default stream cannot be captured: record on one of the pool's, ordered after what is under way.
    c10::cuda::device_synchronize();
    r->guard = std::make_unique<c10::cuda::CUDAStreamGuard>(c10::cuda::getStreamFromPool(false, static_cast<c10::DeviceIndex>(device)));
    r->graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  });
}

int end(void* recording, int keep) {
  auto* r = static_cast<Recording*>(recording);
  int result = guarded([&] { r->graph.capture_end(); });
  r->guard.reset();
  return keep ? result : 0;
}

int replay(void* recording) {
  return guarded([&] { static_cast<Recording*>(recording)->graph.replay(); });
}

void destroy(void* recording) { delete static_cast<Recording*>(recording); }
const char* error() { return last_error.c_str(); }

}  // namespace

extern "C" __attribute__((visibility("default"))) const KeirinCudaGraph keirin_cuda_graph = {create, begin, end, replay, destroy, error};
