// SPDX-License-Identifier: Apache-2.0
//
// One GPU for a test program: its context, memory on it, and a step run over a table of addresses.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "cuda/driver.h"
#include "plugins/codegen/backend.h"
#include "plugins/gpu/choose.h"
#include "plugins/kit/error.h"
#ifdef KEIRIN_ROCM_STANDIN
#include "rocm/device.h"
#endif

namespace keirin::cuda {

using namespace gpu;

// One device and its context for the whole program. `context` is null, and `why_not` says why, where there is none.
struct Machine {
  std::string why_not;
  const DriverApi* driver = nullptr;
  std::unique_ptr<Gpu> gpu;
  std::unique_ptr<Context> context;
  CUstream stream = nullptr;  // the default stream

  Machine() {
    driver = DriverApi::get(why_not);
    if (!driver) return;
#ifdef KEIRIN_ROCM_STANDIN  // the AMD plugin's, whose calls the stand-ins take to the same context (tests/standin)
    gpu = rocm::look_at_gpu("", 0, why_not);
#else
    gpu = look_at_gpu("", 0, why_not);
#endif
    if (!gpu) return;
    context = std::make_unique<Context>(*gpu);
    gpu->driver->make_current(context->handle());
    std::printf("%s %s, %s, %.0f GB, prior %.0f GB/s\n", gpu->name.c_str(), gpu->arch.c_str(), gpu->fingerprint.c_str(),
                static_cast<double>(gpu->memory_bytes) / 1e9, gpu->info.bytes_per_s / 1e9);
  }
};

inline Machine& machine() {
  static auto* machine = new Machine;
  return *machine;
}

// Whoever the plugin chooses for the anchor.
inline std::unique_ptr<codegen::Step> chosen_step(const codegen::AnchorDesc& anchor, const Numerics& numerics) {
  std::string why_not;
  const auto choice = choose(anchor, *machine().gpu, numerics, true, why_not);
  if (!choice) throw kit::Error(KRN_STATUS_unsupported, why_not);
  return make_anchor_step(anchor, *choice, *machine().gpu, code_target(*machine().gpu, nullptr), numerics, true);
}

class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) { check(machine().driver->cuMemAlloc(&at_, bytes ? bytes : 16), "cuMemAlloc"); }
  explicit DeviceMemory(const std::vector<char>& from) : DeviceMemory(from.size()) { put(from.data(), from.size()); }
  ~DeviceMemory() { machine().driver->cuMemFree(at_); }
  DeviceMemory(const DeviceMemory&) = delete;
  void* data() const { return reinterpret_cast<void*>(at_); }
  CUdeviceptr ptr() const { return at_; }
  void put(const void* from, size_t bytes) {
    check(machine().driver->cuMemcpyHtoDAsync(at_, from, bytes, machine().stream), "copy to the device");
  }
  void get(void* to, size_t bytes) const { read(data(), to, bytes); }
  std::vector<char> get(size_t bytes) const {
    std::vector<char> out(bytes);
    get(out.data(), bytes);
    return out;
  }
  static void read(const void* from, void* to, size_t bytes) {
    check(machine().driver->cuMemcpyDtoHAsync(to, reinterpret_cast<CUdeviceptr>(from), bytes, machine().stream), "copy from the device");
    check(machine().driver->cuStreamSynchronize(machine().stream), "cuStreamSynchronize");
  }

 private:
  CUdeviceptr at_ = 0;
};

inline krn_code run_step(const codegen::Step& step, std::vector<void*>& buffers) {
  krn_run run{};
  run.stream = {reinterpret_cast<uint64_t>(machine().stream), KRN_STREAM_KIND_CUDA, KRN_STREAM_HAS_NATIVE};
  codegen::RunContext context;
  std::vector<std::shared_ptr<const void>> keep;
  context.buffers = buffers.data();
  context.keep = &keep;
  context.run = &run;
  return step.run(context);
}

}  // namespace keirin::cuda
