// SPDX-License-Identifier: Apache-2.0
//
// What the stages of the core need from LibTorch, as interfaces that core/eager implements and core/api injects: so that
// passes, executor and race include no torch and can be tested with fakes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/tensor.h"

namespace keirin {

struct TensorSpec {
  DType dtype = DType::kNone;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  // empty: row-major
  Device device;
};

TensorSpec spec_of(const Tensor& tensor);
// "f32[8,128]"
std::string spec_text(const TensorSpec& spec);

// What LibTorch's allocator has handed out in this process so far: the difference of two readings is what came between.
struct Allocations {
  uint64_t count = 0, bytes = 0;  // bytes: as they were asked for; of a GPU as its allocator rounds them
};

// Memory, copies and threads. Any thread may call any function.
class TensorServices {
 public:
  virtual ~TensorServices() = default;
  virtual Result<TensorRef> allocate(const TensorSpec& spec) = 0;  // uninitialised, 64-byte aligned
  // Whether nobody but the holder of this very reference can reach the tensor or its memory.
  virtual bool unshared(const TensorRef& tensor) = 0;
  // A view of `bytes` owned by `owner`.
  virtual Result<TensorRef> wrap(const TensorSpec& spec, void* data, std::shared_ptr<void> owner) = 0;
  // A view of the tensor's own storage, which it keeps: its first element lies `byte_offset` bytes after the tensor's.
  // Of the dtype of `spec`, for which the offset in the storage has to be a whole number of elements; an error where
  // the storage ends before the view.
  virtual Result<TensorRef> view(const TensorRef& tensor, const TensorSpec& spec, int64_t byte_offset) = 0;
  virtual Result<TensorRef> clone(const TensorRef& tensor) = 0;    // same sizes and strides, own storage
  // Element-wise, converts dtype, strides and device. Along a stride of 0 of `to` the first element of `from` is taken.
  virtual Status copy(const TensorRef& to, const TensorRef& from) = 0;
  virtual Result<TensorRef> cast(const TensorRef& tensor, DType dtype) = 0;
  virtual Result<TensorRef> to_device(const TensorRef& tensor, Device device) = 0;  // same sizes and strides; itself if it is there
  // fn(begin, end) on slices of [0, n), at least `grain` long, on the caller and LibTorch's pool; returns when all returned.
  virtual void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& fn) = 0;
  // How many share the work of the calling thread's operators. Once asked for, also of what else divides its work by LibTorch's OpenMP.
  virtual int num_threads() = 0;
  virtual void set_num_threads(int threads) = 0;
  // From now on the operators of the calling thread, and of no other, use this one thread.
  virtual void keep_to_this_thread() = 0;
  // Waits for the device's work; nothing on the CPU.
  virtual Status synchronize(Device device) = 0;
  // The native handle of LibTorch's current stream on the device (0 on the CPU), without a vendor header.
  virtual uint64_t current_stream(Device device) = 0;
  virtual int64_t peak_bytes(Device device) = 0;       // high-water mark of LibTorch's allocator since reset
  virtual void reset_peak(Device device) = 0;
  virtual Allocations allocations(Device device) = 0;
};

}  // namespace keirin
