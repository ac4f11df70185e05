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

// How far the elements of two tensors are from those of a reference of the same sizes, all as 64-bit floats.
struct ElementErrors {
  struct Side {
    double worst = 0, squares = 0;  // largest error, sum of squared errors
  };
  // Whether all that is not finite (a NaN, an infinity) is the same in the second as in the reference or in the first: it is left out of
  // what follows. Where it is not, the rest says nothing.
  bool explained = true;
  int64_t judged = 0;      // elements that are finite in all three
  bool constant = false;   // the reference has one value only
  double scale = 0;        // its largest magnitude
  double squares = 0;      // the sum of its squares
  Side first, second;
  int64_t changed = 0;     // elements of the second that are not equal to the reference's
  // By how much an error of the second exceeds what is granted at the reference's element, and where (row-major); -1: nowhere.
  double worst_beyond = 0;
  int64_t worst_index = -1;
};

struct Granted {
  double at_one = 0, least = 0;
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
  // Of three tensors of equal sizes on one device, computed there. Granted at magnitude m are max(granted.least, granted.at_one *
  // 2^floor(log2 m)): with both in units of the last place, a number of them. `unsupported` where elements have to be read one by one.
  virtual Result<ElementErrors> errors(const TensorRef& reference, const TensorRef& first, const TensorRef& second,
                                       const Granted& granted) {
    (void)reference, (void)first, (void)second, (void)granted;
    return Status(Code::k_unsupported, "elements are read one by one");
  }
  // A floating-point tensor's numbers, each changed by a random number of its own, computed on its device and laid out like it. The same
  // seed and device give the same numbers; no generator of LibTorch's is drawn from. `unsupported` where memory is not dense.
  enum class Change : uint8_t {
    kSmaller,  // x * (1 - share * r), in its own dtype; where all are zero share / 8 * (1 + r)
    kRounding  // x * (1 - share) or x * (1 + share), in fp64
  };
  virtual Result<TensorRef> change(const TensorRef& tensor, Change how, double share, uint64_t seed) {
    (void)tensor, (void)how, (void)share, (void)seed;
    return Status(Code::k_unsupported, "elements are written one by one");
  }
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
