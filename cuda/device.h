// SPDX-License-Identifier: Apache-2.0
//
// One GPU as the driver describes it, and LibTorch's context on it. Looking at a device creates no context; `Context` joins the
// primary one, which LibTorch uses too, and never makes a second.
#pragma once

#include <memory>
#include <string>

#include "cuda/code_store.h"
#include "cuda/driver.h"
#include "plugins/codegen/backend.h"
#include "plugins/codegen/schedule.h"

namespace keirin::cuda {

struct Gpu {
  CUdevice device = 0;
  int index = 0;            // the driver's number
  std::string name;         // "NVIDIA H200"
  std::string arch;         // "sm_90"
  std::string fingerprint;  // driver and NVRTC
  uint64_t memory_bytes = 0;
  double matrix_flops_per_s = 0;
  int64_t block_shared_bytes = 0;  // the most that a block may ask for
  codegen::TargetInfo info;
  codegen::GpuFacts facts;
};

// The device of that PCI address ("0000:3b:00.0"), or else of that number; null with the reason. Needs driver and NVRTC.
std::unique_ptr<Gpu> look_at_gpu(const std::string& pci, int index, std::string& why_not);
// A device that is not there, for tests of all that compiles without one.
Gpu imagine_gpu(const std::string& arch);

// The primary context, retained while this lives.
class Context {
 public:
  explicit Context(const Gpu& gpu);
  ~Context();
  Context(const Context&) = delete;
  CUcontext handle() const { return handle_; }
  // ok or device_lost; waits for nothing.
  int32_t health() const;

 private:
  const Driver* driver_;
  CUdevice device_;
  CUcontext handle_ = nullptr;
  CUevent probe_ = nullptr;
};

// Makes a context current for a scope, if it is not, and puts the former back.
class Current {
 public:
  explicit Current(CUcontext context);
  ~Current();
  Current(const Current&) = delete;

 private:
  const Driver* driver_ = nullptr;
  CUcontext former_ = nullptr;
  bool changed_ = false;
};

}  // namespace keirin::cuda
