// SPDX-License-Identifier: Apache-2.0
//
// A tensor as the torch-free core sees it: dtype, sizes, strides, device and an address, owned by whoever made it. The eager
// side implements it over at::Tensor; nothing here allocates.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"

namespace keirin {

struct Device {
  enum Kind : int32_t { kCpu = 1, kCuda = 2, kHip = 10 };  // DLPack's numbers
  int32_t kind = kCpu;
  int32_t index = 0;
  bool operator==(const Device&) const = default;
};

// "cpu", "cuda:0", "rocm:0": what LibTorch's ROCm build calls cuda is rocm here.
std::string device_name(const Device& device);
// The way back, and "cuda" for "cuda:0", "rocm" for "rocm:0"; nothing for any other word.
std::optional<Device> device_from_name(std::string_view name);

class Tensor {
 public:
  virtual ~Tensor() = default;
  virtual DType dtype() const = 0;
  virtual Device device() const = 0;
  virtual const int64_t* sizes() const = 0;
  virtual const int64_t* strides() const = 0;  // in elements
  virtual int64_t rank() const = 0;
  virtual void* data() const = 0;              // first element; may be null for zero elements
  virtual int64_t storage_bytes() const = 0;   // bytes that may be touched from data()
};

// Shared because eager may keep views of it; the tensor's own reference count is LibTorch's.
using TensorRef = std::shared_ptr<Tensor>;

}  // namespace keirin
