// SPDX-License-Identifier: Apache-2.0
//
// LibTorch's own CUDA graph behind a C table: recording goes through its private memory pool and its graph-safe random
// generators, which the driver's capture alone would not give. A library of its own, opened at run time after libtorch_cuda, so
// that nothing else of Keirin needs a CUDA header or library. No exception leaves it.
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/eager/cuda_graph/shim.h"

namespace {

struct Copy {
  cudaGraphNode_t node;
  const void *to, *from;
  size_t bytes;
};

struct Graph : at::cuda::CUDAGraph {
  using CUDAGraph::CUDAGraph;
  void let_others_draw() {
    for (auto& [state, increment] : captured_generator_states_) state->capturing_ = false;
  }
  // What LibTorch leaves as it is where a capture failed: its generators, which refuse to draw from then on, and the pool.
  void abandon() {
    let_others_draw();
    if (capture_ended_ || capture_dev_ == UNDEFINED_DEVICE) return;
    try {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(capture_dev_, mempool_id_);
      capture_ended_ = true;  // now the destructor gives the pool back
    } catch (const std::exception&) {  // it had not begun
    }
  }
};

struct Recording {
  Graph graph{/*keep_graph=*/true};                // a node is redirected by its name in the graph
  std::vector<Copy> copies;                        // dense ones
  std::unique_ptr<c10::cuda::CUDAStreamGuard> guard;  // while recording
  c10::DeviceIndex device = 0;
  bool is_only_device = c10::cuda::device_count() == 1;  // then it is the current one
  enum { kUnknown, kYes, kNo } draws = kUnknown;   // whether a replay takes random numbers, which its first one shows
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
    auto* r = new Recording;
    r->device = static_cast<c10::DeviceIndex>(device);
    out = r;
  });
  return out;
}

unsigned long long drawn(int device) {
  unsigned long long out = 0;
  guarded([&] { out = at::cuda::detail::getDefaultCUDAGenerator(static_cast<c10::DeviceIndex>(device)).get_offset(); });
  return out;
}

int is_capturing(int device) {
  int out = 0;
  guarded([&] {
    c10::cuda::CUDAGuard on(static_cast<c10::DeviceIndex>(device));
    out = c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
  });
  return out;
}

int begin(void* recording, int device, int draws) {
  auto* r = static_cast<Recording*>(recording);
  const int failed = guarded([&] {
    // The legacy default stream cannot be captured: record on one of the pool's, ordered after what is under way.
    c10::cuda::device_synchronize();
    r->guard = std::make_unique<c10::cuda::CUDAStreamGuard>(c10::cuda::getStreamFromPool(false, static_cast<c10::DeviceIndex>(device)));
    // In the mode of a capture a generator throws where another thread draws, which then waits here. Nothing drawn, no mode.
    at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator(static_cast<c10::DeviceIndex>(device));
    const std::lock_guard lock(generator.mutex());
    r->graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    if (!draws) r->graph.let_others_draw();
  });
  if (failed) r->graph.abandon(), r->guard.reset();
  return failed;
}

std::vector<Copy> copies_of(cudaGraph_t graph) {
  size_t count = 0;
  C10_CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  C10_CUDA_CHECK(cudaGraphGetNodes(graph, nodes.data(), &count));
  std::vector<Copy> out;
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    C10_CUDA_CHECK(cudaGraphNodeGetType(node, &type));
    if (type != cudaGraphNodeTypeMemcpy) continue;
    cudaMemcpy3DParms parms{};
    C10_CUDA_CHECK(cudaGraphMemcpyNodeGetParams(node, &parms));
    if (parms.extent.height == 1 && parms.extent.depth == 1 && parms.dstPtr.ptr && parms.srcPtr.ptr)
      out.push_back({node, parms.dstPtr.ptr, parms.srcPtr.ptr, parms.extent.width});
  }
  return out;
}

int end(void* recording, int keep) {
  auto* r = static_cast<Recording*>(recording);
  int result = guarded([&] { r->graph.capture_end(); });
  if (result) r->graph.abandon();
  if (!result && keep)
    result = guarded([&] {
      r->copies = copies_of(r->graph.raw_cuda_graph());
      r->graph.instantiate();
    });
  r->guard.reset();
  return keep ? result : 0;
}

int find_copy(void* recording, const void* to, const void* from) {
  const std::vector<Copy>& copies = static_cast<Recording*>(recording)->copies;
  for (size_t i = 0; i < copies.size(); ++i)
    if (copies[i].to == to && copies[i].from == from) return static_cast<int>(i);
  return -1;
}

int redirect(void* recording, int copy, void* to, const void* from) {
  auto* r = static_cast<Recording*>(recording);
  const Copy& c = r->copies[static_cast<size_t>(copy)];
  return guarded([&] {
    C10_CUDA_CHECK(cudaGraphExecMemcpyNodeSetParams1D(r->graph.raw_cuda_graph_exec(), c.node, to, from, c.bytes, cudaMemcpyDeviceToDevice));
  });
}

// LibTorch's replay guards the device and moves the generators on: without random numbers only the launch is left, and cold code
// around it would cost as much as a small launch.
int replay(void* recording) {
  auto* r = static_cast<Recording*>(recording);
  return guarded([&] {
    if (r->draws == Recording::kNo && (r->is_only_device || c10::cuda::current_device() == r->device)) {
      C10_CUDA_CHECK(cudaGraphLaunch(r->graph.raw_cuda_graph_exec(), c10::cuda::getCurrentCUDAStream(r->device)));
      return;
    }
    const at::Generator& generator = at::cuda::detail::getDefaultCUDAGenerator(r->device);
    const uint64_t before = generator.get_offset();
    r->graph.replay();
    if (r->draws == Recording::kUnknown) r->draws = generator.get_offset() == before ? Recording::kNo : Recording::kYes;
  });
}

void destroy(void* recording) { delete static_cast<Recording*>(recording); }
const char* error() { return last_error.c_str(); }

}  // namespace

extern "C" __attribute__((visibility("default")))
const KeirinCudaGraph keirin_cuda_graph = {sizeof(KeirinCudaGraph), create,    drawn,    is_capturing, begin, end,
                                           find_copy,               redirect,  replay,   destroy,      error};
