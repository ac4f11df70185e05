// SPDX-License-Identifier: Apache-2.0
//
// The services over LibTorch: memory that is counted, copies that convert, threads that are really used.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <any>
#include <atomic>
#include <functional>
#include <mutex>
#include <set>
#include <thread>

#include "core/eager/at_tensor.h"
#include "core/eager/tensor_services.h"

namespace keirin {
namespace {

TEST(Services, CountsPeakBytes) {
  const auto services = make_tensor_services();
  services->reset_peak({});
  const int64_t before = services->peak_bytes({});
  { const TensorRef big = *services->allocate({DType::k_u8, {1 << 20}, {}, {}}); }
  const int64_t peak = services->peak_bytes({}) - before;
  EXPECT_GE(peak, 1 << 20);
  EXPECT_LT(peak, (1 << 20) + 4096);
  services->reset_peak({});
  EXPECT_EQ(services->peak_bytes({}), before);
}

TEST(Services, CopiesConvertDtypeAndStrides) {
  const auto services = make_tensor_services();
  const TensorRef from = *services->allocate({DType::k_f32, {2, 2}, {}, {}});
  for (int i = 0; i < 4; ++i) static_cast<float*>(from->data())[i] = static_cast<float>(i) + 0.5f;
  const TensorRef to = *services->allocate({DType::k_i64, {2, 2}, {1, 2}, {}});
  ASSERT_TRUE(services->copy(to, from).ok());
  const auto* x = static_cast<const int64_t*>(to->data());
  EXPECT_EQ((std::vector<int64_t>(x, x + 4)), (std::vector<int64_t>{0, 2, 1, 3}));
  const TensorRef twin = *services->clone(to);
  EXPECT_NE(twin->data(), to->data());
  EXPECT_EQ(twin->strides()[0], 1);
}

TEST(Services, ErrorsKeepTheirCause) {
  const auto services = make_tensor_services();
  const TensorRef two = *services->allocate({DType::k_f32, {2}, {}, {}});
  const TensorRef three = *services->allocate({DType::k_f32, {3}, {}, {}});
  const Status status = services->copy(two, three);
  EXPECT_EQ(status.code(), Code::k_invalid_input);
  EXPECT_NE(status.cause(), nullptr);
}

TEST(Services, WrapKeepsTheOwnerAlive) {
  const auto services = make_tensor_services();
  auto owner = std::make_shared<std::vector<float>>(4, 2.0f);
  const std::weak_ptr<std::vector<float>> watch = owner;
  void* data = owner->data();
  TensorRef tensor = *services->wrap({DType::k_f32, {4}, {}, {}}, data, std::move(owner));
  EXPECT_FALSE(watch.expired());
  EXPECT_EQ(tensor->data(), data);
  tensor.reset();
  EXPECT_TRUE(watch.expired());
}

TEST(Services, WhatAnotherCanReachIsShared) {
  const auto services = make_tensor_services();
  const TensorRef tensor = *services->allocate({DType::k_f32, {4}, {1}, {}});
  EXPECT_TRUE(services->unshared(tensor));
  {
    const TensorRef same = *services->cast(tensor, DType::k_f32);
    EXPECT_NE(same, tensor);
    EXPECT_FALSE(services->unshared(tensor)) << "LibTorch's tensor is in two hands";
  }
  {
    const TensorRef second = tensor;
    EXPECT_FALSE(services->unshared(tensor));
  }
  EXPECT_TRUE(services->unshared(tensor));
}

// Every way in which LibTorch lets a second hand reach the same memory: while that hand lives the memory is shared.
TEST(Services, MemoryIsSharedWhileAnythingOfItLives) {
  const auto services = make_tensor_services();
  const std::pair<const char*, std::function<std::any(const at::Tensor&)>> hands[] = {
      {"the tensor", [](const at::Tensor& t) { return std::any(t); }},
      {"detach", [](const at::Tensor& t) { return std::any(t.detach()); }},
      {"alias", [](const at::Tensor& t) { return std::any(at::alias(t)); }},
      {"view", [](const at::Tensor& t) { return std::any(t.view({-1})); }},
      {"a part", [](const at::Tensor& t) { return std::any(t.narrow(0, 1, 1)); }},
      {"one element", [](const at::Tensor& t) { return std::any(t.select(0, 0).select(0, 0)); }},
      {"expand", [](const at::Tensor& t) { return std::any(t.unsqueeze(0).expand({3, 2, 4})); }},
      {"transposed", [](const at::Tensor& t) { return std::any(t.t()); }},
      {"other dtype", [](const at::Tensor& t) { return std::any(t.view(at::kInt)); }},
      {"storage", [](const at::Tensor& t) { return std::any(t.storage()); }},
      {"set_", [](const at::Tensor& t) { return std::any(at::empty({0}, t.options()).set_(t)); }},
      {"detach of a view", [](const at::Tensor& t) { return std::any(t.view({-1}).detach().narrow(0, 2, 2)); }},
      {"in a list", [](const at::Tensor& t) { return std::any(c10::IValue(std::vector<at::Tensor>{t.detach()})); }},
      {"in a closure of memory", [](const at::Tensor& t) {
         return std::any(at::from_blob(t.data_ptr(), t.sizes(), [kept = t.detach()](void*) {}, t.options()));
       }},
  };
  for (const auto& [name, take] : hands) {
    const TensorRef tensor = *services->allocate({DType::k_f32, {2, 4}, {4, 1}, {}});
    EXPECT_TRUE(services->unshared(tensor)) << name;
    std::any hand = take(to_at(tensor));
    EXPECT_FALSE(services->unshared(tensor)) << name;
    hand.reset();
    EXPECT_TRUE(services->unshared(tensor)) << name << " has let go";
  }
  // What autograd has touched is no longer as it was made, and may be needed for a backward pass.
  const TensorRef tensor = *services->allocate({DType::k_f32, {2, 4}, {4, 1}, {}});
  to_at(tensor).requires_grad_();
  EXPECT_FALSE(services->unshared(tensor));
}

TEST(Services, ParallelForCoversTheRangeOnSeveralThreads) {
  const auto services = make_tensor_services();
  services->set_num_threads(2);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::atomic<int64_t> sum = 0;
  services->parallel_for(1000, 10, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) sum += i;
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(sum, 999 * 500);
  EXPECT_EQ(threads.size(), 2u);
}

TEST(Services, AbsentDeviceIsRefused) {
  const auto services = make_tensor_services();
  auto tensor = services->allocate({DType::k_f32, {2}, {}, {Device::kCuda, 63}});
  ASSERT_FALSE(tensor.ok());
  EXPECT_EQ(tensor.status().code(), Code::k_unsupported);
}

}  // namespace
}  // namespace keirin
