// SPDX-License-Identifier: Apache-2.0
//
// One GPU as its vendor's plugin describes it, and the framework's context on it. `Context` joins the one that LibTorch
// uses too, and never makes a second.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "plugins/codegen/backend.h"
#include "plugins/codegen/kernel/schedule.h"
#include "plugins/gpu/driver.h"
#include "plugins/shell/shell.h"

namespace keirin::gpu {

class PlanLibrary;     // plan.h
class ProductLibrary;  // product.h

struct Gpu {
  const Driver* driver = nullptr;            // the vendor's, as the next two, and outlives everything
  const ProductLibrary* products = nullptr;  // matrix products; null: there is none
  const PlanLibrary* plans = nullptr;        // convolutions and attention; null: there is none
  const MatrixUnit* matrix = nullptr;        // null: none that texts of the shared folder can use
  int device = 0;                            // the driver's handle
  int index = 0;                             // the driver's number
  int wave = 32;                             // threads that exchange registers
  bool begins_early = false;                 // CodeTarget's
  std::string name;                          // for people
  std::string arch;                          // as the compiler names it
  std::string fingerprint;                   // versions of driver and compiler
  uint64_t memory_bytes = 0;
  double matrix_flops_per_s = 0;
  int64_t block_shared_bytes = 0;  // the most that a block may ask for
  std::function<void(krn_condition&)> condition;  // what the driver tells of it now; empty: nothing
  codegen::TargetInfo info;
  codegen::GpuFacts facts;
};

// Which of `count` devices has that PCI address, however tools write it; else `index`, if there are so many: virtual machines may show a
// device under another address than the driver. -1: none. `address_of` gives "" where the driver does not say.
int device_number(int count, const std::string& pci, int index, const std::function<std::string(int)>& address_of);

// What code for a policy must be like.
CodeTarget code_target(const Gpu& gpu, const krn_policy* policy);

// The context that is shared with the framework, retained while this lives.
class Context final : public shell::Held {
 public:
  explicit Context(const Gpu& gpu);
  ~Context() override;
  Context(const Context&) = delete;
  const Driver& driver() const { return driver_; }
  ContextHandle handle() const { return handle_; }
  // ok or device_lost; waits for nothing.
  int32_t health() const;
  Former enter() const override;
  void leave(const Former& former) const override;

 private:
  const Driver& driver_;
  const int device_;
  ContextHandle handle_ = nullptr;
  Event probe_ = nullptr;
};

// Makes a context current for a scope, if it is not, and puts the former back.
class Current {
 public:
  explicit Current(const Context* context)
      : Current(context ? &context->driver() : nullptr, context ? context->handle() : nullptr) {}
  // Of no context: does nothing.
  Current(const Driver* driver, ContextHandle context);
  ~Current();
  Current(const Current&) = delete;

 private:
  const Driver* driver_;
  shell::Held::Former former_;
};

// A device of the shell over GpuBackend (backend.h). Executables keep its context. All work is done in that context, on
// any stream.
class PluginDevice final : public shell::Device {
 public:
  explicit PluginDevice(std::unique_ptr<Gpu> gpu);
  void describe(krn_device_desc& out) const override;
  void open() override { (void)held(); }
  void close() override;
  krn_code health() const override;
  void condition(krn_condition& out) const override {
    if (gpu_->condition) gpu_->condition(out);
  }

 protected:
  const shell::Traits& traits() const override;
  std::unique_ptr<codegen::Backend> backend(const krn_policy& policy, uint32_t candidate,
                                            const shell::Held* held) const override;
  std::shared_ptr<const shell::Held> held() override;

 private:
  std::unique_ptr<Gpu> gpu_;
  krn_peak peaks_[3];
  mutable std::mutex mutex_;
  std::shared_ptr<const Context> context_;
};

}  // namespace keirin::gpu
