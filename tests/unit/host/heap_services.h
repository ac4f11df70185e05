// SPDX-License-Identifier: Apache-2.0
//
// Tensors on the heap and threads of the standard library behind TensorServices: what tests of the torch-free core run on. It
// converts no dtypes: a test that needs that needs LibTorch.
#pragma once

#include <string.h>

#include <thread>

#include "core/base/services.h"

namespace keirin::test {

inline int64_t count_elements(const std::vector<int64_t>& sizes) {
  int64_t n = 1;
  for (const int64_t s : sizes) n *= s;
  return n;
}

class HeapTensor final : public Tensor {
 public:
  HeapTensor(const TensorSpec& spec, void* data, std::shared_ptr<void> owner)
      : spec_(spec), data_(data), owner_(std::move(owner)) {
    if (spec_.strides.empty()) {
      spec_.strides.resize(spec_.sizes.size());
      int64_t step = 1;
      for (size_t i = spec_.sizes.size(); i-- > 0;) {
        spec_.strides[i] = step;
        step *= spec_.sizes[i];
      }
    }
  }
  static int64_t bytes_of(const TensorSpec& spec) {
    if (count_elements(spec.sizes) == 0) return 0;
    if (spec.strides.empty()) return count_elements(spec.sizes) * dtype_bytes(spec.dtype);
    int64_t last = 0;
    for (size_t i = 0; i < spec.sizes.size(); ++i) last += (spec.sizes[i] - 1) * spec.strides[i];
    return (last + 1) * dtype_bytes(spec.dtype);
  }
  DType dtype() const override { return spec_.dtype; }
  Device device() const override { return spec_.device; }
  const int64_t* sizes() const override { return spec_.sizes.data(); }
  const int64_t* strides() const override { return spec_.strides.data(); }
  int64_t rank() const override { return static_cast<int64_t>(spec_.sizes.size()); }
  void* data() const override { return data_; }
  int64_t storage_bytes() const override { return bytes_of(spec_); }
  const TensorSpec& spec() const { return spec_; }

 private:
  TensorSpec spec_;
  void* data_;
  std::shared_ptr<void> owner_;
};

class HeapServices : public TensorServices {
 public:
  Result<TensorRef> allocate(const TensorSpec& spec) override {
    const auto bytes = static_cast<size_t>(HeapTensor::bytes_of(spec));
    std::shared_ptr<void> block(::aligned_alloc(64, (bytes + 64) / 64 * 64), ::free);
    void* const data = block.get();
    return TensorRef(std::make_shared<HeapTensor>(spec, data, std::move(block)));
  }
  bool unshared(const TensorRef& tensor) override { return tensor.use_count() == 1; }
  Result<TensorRef> wrap(const TensorSpec& spec, void* data, std::shared_ptr<void> owner) override {
    return TensorRef(std::make_shared<HeapTensor>(spec, data, std::move(owner)));
  }
  Result<TensorRef> view(const TensorRef& tensor, const TensorSpec& spec, int64_t byte_offset) override {
    return wrap(spec, static_cast<char*>(tensor->data()) + byte_offset, tensor);
  }
  Result<TensorRef> clone(const TensorRef& tensor) override {
    const auto& spec = static_cast<const HeapTensor&>(*tensor).spec();
    KRN_TRY_LET(TensorRef made, allocate(spec));
    ::memcpy(made->data(), tensor->data(), static_cast<size_t>(tensor->storage_bytes()));
    return made;
  }
  Status copy(const TensorRef& to, const TensorRef& from) override {
    if (to->dtype() != from->dtype() || to->storage_bytes() != from->storage_bytes())
      return Status(Code::k_unsupported, "the heap services copy like to like");
    ::memcpy(to->data(), from->data(), static_cast<size_t>(from->storage_bytes()));
    return {};
  }
  Result<TensorRef> cast(const TensorRef&, DType) override {
    return Status(Code::k_unsupported, "the heap services convert nothing");
  }
  Result<TensorRef> to_device(const TensorRef& tensor, Device) override { return tensor; }
  void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& fn) override {
    const int64_t slice = std::max(grain, (n + num_threads_ - 1) / num_threads_);
    std::vector<std::thread> threads;
    for (int64_t begin = 0; begin < n; begin += slice)
      threads.emplace_back([&fn, begin, end = std::min(n, begin + slice)] { fn(begin, end); });
    for (std::thread& t : threads) t.join();
  }
  int num_threads() override { return num_threads_; }
  void set_num_threads(int threads) override { num_threads_ = threads; }
  void keep_to_this_thread() override {}
  Status synchronize(Device) override { return {}; }
  uint64_t current_stream(Device) override { return 0; }
  int64_t peak_bytes(Device) override { return 0; }
  void reset_peak(Device) override {}
  Allocations allocations(Device) override { return {}; }

 private:
  int num_threads_ = 4;
};

// A row-major CPU tensor with these elements.
template <class T>
TensorRef tensor_of(DType dtype, std::vector<int64_t> sizes, const std::vector<T>& values) {
  HeapServices services;
  Result<TensorRef> made = services.allocate({dtype, std::move(sizes), {}, {}});
  ::memcpy((*made)->data(), values.data(), values.size() * sizeof(T));
  return *made;
}

}  // namespace keirin::test
