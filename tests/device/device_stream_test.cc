// SPDX-License-Identifier: Apache-2.0
//
// A call on a stream of the caller's (Destination::stream): the work goes there and nowhere else, the call does not wait for it, and
// LibTorch's current stream is afterwards what it was, also where the call threw.
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <cuda.h>
#include <dlfcn.h>
#include <keirin/torch.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include "tests/support/temp_folder.h"

namespace keirin {
namespace {

using Clock = std::chrono::steady_clock;

// What of the driver a stream of one's own takes.
struct Driver {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  template <class Fn>
  Fn* find(const char* name) const { return library ? reinterpret_cast<Fn*>(dlsym(library, name)) : nullptr; }
  decltype(cuInit)* init = find<decltype(cuInit)>("cuInit");
  decltype(cuDeviceGetCount)* count = find<decltype(cuDeviceGetCount)>("cuDeviceGetCount");
  decltype(cuStreamCreate)* create = find<decltype(cuStreamCreate)>("cuStreamCreate");
  decltype(cuStreamDestroy)* destroy = find<decltype(cuStreamDestroy)>("cuStreamDestroy_v2");
  decltype(cuStreamQuery)* query = find<decltype(cuStreamQuery)>("cuStreamQuery");
  decltype(cuStreamSynchronize)* synchronize = find<decltype(cuStreamSynchronize)>("cuStreamSynchronize");
  decltype(cuLaunchHostFunc)* launch_host = find<decltype(cuLaunchHostFunc)>("cuLaunchHostFunc");
};

// A stream that the program made, behind the back of LibTorch. `stop` holds up what is enqueued after it until `go`.
class OwnStream {
 public:
  explicit OwnStream(const Driver& driver) : driver_(driver) { EXPECT_EQ(driver_.create(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS); }
  ~OwnStream() {
    go();
    driver_.synchronize(stream_);
    driver_.destroy(stream_);
  }
  CUstream handle() const { return stream_; }
  bool idle() const { return driver_.query(stream_) == CUDA_SUCCESS; }
  void wait() { EXPECT_EQ(driver_.synchronize(stream_), CUDA_SUCCESS); }
  void stop() {
    stopped_ = true;
    const auto hold = [](void* stopped) {
      while (static_cast<std::atomic<bool>*>(stopped)->load()) std::this_thread::sleep_for(std::chrono::microseconds(50));
    };
    EXPECT_EQ(driver_.launch_host(stream_, hold, &stopped_), CUDA_SUCCESS);
  }
  void go() { stopped_ = false; }

 private:
  const Driver& driver_;
  CUstream stream_ = nullptr;
  std::atomic<bool> stopped_{false};
};

// Ends a test in which a call waits for a stream that is held up: lets it go after so long.
class Rescue {
 public:
  Rescue(OwnStream& stream, std::chrono::seconds patience) : thread_([this, &stream, end = Clock::now() + patience] {
    while (!over_ && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (!over_) came_ = true;
    stream.go();
  }) {}
  ~Rescue() { over_ = true, thread_.join(); }
  bool came() const { return came_; }

 private:
  std::atomic<bool> over_{false}, came_{false};
  std::thread thread_;
};

struct Stream : testing::TestWithParam<const char*> {
  void SetUp() override {
    int num_gpus = 0;
    if (!driver.launch_host || driver.init(0) != CUDA_SUCCESS || driver.count(&num_gpus) != CUDA_SUCCESS || num_gpus == 0)
      GTEST_SKIP() << "no NVIDIA driver, or no GPU";
    const at::Device device("cuda:0");
    LoadOptions options;
    options.device = "cuda:0";
    options.cache_dir = folder.path() + "/cache";
    const std::string file = "bench/zoo/models/small/mlp.pt2", source = KEIRIN_SOURCE_DIR;
    model.emplace(Model::load(std::filesystem::exists(file) ? file : source + "/" + file, options));
    x = at::randn({16, 64}, device);  // LibTorch's CUDA library was opened with the model
    if (GetParam() == std::string("decided")) compile(*model, {x});
    want = call(*model, {x})[0].cpu();
    current.emplace(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  std::vector<TensorView> call_on(OwnStream& stream) { return model->call({torch_detail::view(x)}, {{}, stream.handle()}); }
  at::Tensor of(const TensorView& view) { return torch_detail::tensor(view).cpu(); }
  bool current_is_as_before() const { return c10::impl::VirtualGuardImpl(at::kCUDA).getStream(x.device()) == *current; }

  Driver driver;
  test::TempFolder folder;
  std::optional<Model> model;
  std::optional<c10::Stream> current;
  at::Tensor x, want;
};

TEST_P(Stream, TakesTheWorkAndNobodyWaits) {
  OwnStream stream(driver);
  call_on(stream);  // memory of this stream is kept from here on: asking the driver for more waits for the device
  stream.wait();
  x.copy_(at::randn_like(x));
  const at::Tensor other = call(*model, {x})[0].cpu();
  ASSERT_FALSE(at::allclose(other, want));
  stream.stop();
  ASSERT_FALSE(stream.idle());
  std::vector<TensorView> outputs;
  {
    const Rescue rescue(stream, std::chrono::seconds(20));
    outputs = call_on(stream);
    EXPECT_FALSE(rescue.came()) << "the call waited for its own work";
    EXPECT_FALSE(stream.idle());
    EXPECT_EQ(driver.query(nullptr), CUDA_SUCCESS) << "something of it is on the default stream";
    EXPECT_TRUE(current_is_as_before());
  }
  stream.wait();
  EXPECT_TRUE(at::allclose(of(outputs[0]), other));
}

TEST_P(Stream, IsPutBackWhereACallThrows) {
  OwnStream stream(driver);
  const std::vector<float> wrong(7);
  Destination to;
  to.stream = stream.handle();
  EXPECT_THROW(model->call({{const_cast<float*>(wrong.data()), "f32", {7}, {}, "cpu", nullptr}}, to), Error);
  EXPECT_TRUE(current_is_as_before());
  to.outputs = {{x.data_ptr(), "f32", {1, 1}, {}, "cuda:0", nullptr}};
  EXPECT_THROW(model->call({torch_detail::view(x)}, to), Error);
  EXPECT_TRUE(current_is_as_before());
  EXPECT_TRUE(at::allclose(of(call_on(stream)[0]), want));
}

INSTANTIATE_TEST_SUITE_P(Model, Stream, testing::Values("eager", "decided"), [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace keirin
