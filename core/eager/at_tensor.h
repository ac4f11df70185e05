// SPDX-License-Identifier: Apache-2.0
//
// The seam between the core's tensors and LibTorch's, in both directions, and the place where torch's exceptions become
// Statuses. Included by the files of core/eager and core/capture/import only: everything else sees core/base/tensor.h.
// A Status made here keeps the exception itself in `cause`, so that the front door can rethrow exactly what eager
// raised.
#pragma once

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <span>
#include <string>

#include "core/base/status.h"
#include "core/base/tensor.h"

namespace keirin {

// `hot`: read by every call, hence beside the executor's code (core/exec/plan.h).
class AtTensor final : public Tensor {
 public:
  explicit AtTensor(at::Tensor tensor);
  [[gnu::hot]] DType dtype() const override;
  Device device() const override;
  [[gnu::hot]] const int64_t* sizes() const override;
  [[gnu::hot]] const int64_t* strides() const override;
  [[gnu::hot]] int64_t rank() const override;
  [[gnu::hot]] void* data() const override;
  [[gnu::hot]] int64_t storage_bytes() const override;
  const at::Tensor& at() const { return tensor_; }

 private:
  at::Tensor tensor_;
  DType dtype_;
};

// kNone for a type that the core has no name for; such tensors still pass through eager.
DType dtype_of(at::ScalarType type);
at::ScalarType scalar_type_of(DType dtype);
Device device_of(const at::Device& device);
// Whether this process runs on a ROCm build of LibTorch, which calls its devices cuda as well. Any thread.
bool torch_is_rocm();
// The folder of the LibTorch that this process runs on.
std::string torch_folder();
at::Device at_device(const Device& device);

// Null for an undefined tensor.
TensorRef from_at(at::Tensor tensor);
// Undefined for null. A tensor that was not made here is wrapped without a copy and kept alive.
at::Tensor to_at(const TensorRef& tensor);

// The current exception as a Status; to be called inside a catch block.
Status status_of_current_exception();

// While it lives, each warning of LibTorch's goes to whom it would go to on this thread, but once in the process: operators are run again
// and again, on copies and for other candidates.
class WarnsOnce {
 public:
  WarnsOnce();
  ~WarnsOnce();
  WarnsOnce(const WarnsOnce&) = delete;

 private:
  c10::WarningHandler* const outer_;  // null: one more of these around it
};

// Runs `fn`, which may throw; `fn` returns nothing.
template <class Fn>
Status catch_torch(Fn&& fn) {
  const WarnsOnce warns;
  try {
    fn();
    return {};
  } catch (...) {
    return status_of_current_exception();
  }
}

}  // namespace keirin
