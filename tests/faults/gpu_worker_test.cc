// SPDX-License-Identifier: Apache-2.0
//
// Worker mode on a GPU: whatever a plugin does in a run, in its process or on the device, costs that run. The caller gets a status and
// outputs that nobody wrote, the region is not run again, other regions run in a fresh worker, and the device goes on working for this
// process. Runs on the first GPU there is: a real one, or the emulated HIP's (tests/standin/emulated).
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/cache/bad_records.h"
#include "core/cache/cache.h"
#include "core/host/call/tensor_view.h"
#include "core/host/plugins.h"
#include "core/host/worker/device_arguments.h"
#include "core/host/worker/device_driver.h"
#include "core/ir/bytes.h"
#include "tests/faults/run_fault.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/host/heap_services.h"

namespace keirin {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using test::make_relu;
using test::RunFault;
using test::workers;

constexpr float kUntouched = -7;
constexpr int64_t kLarge = 200000;  // of elements: the arguments lie in memory of the device, and not of the host
static_assert(kLarge * 8 > static_cast<int64_t>(DeviceArguments::kMostThroughHost));

// y = x + w, w a weight.
RegionBytes add_region(int64_t n) {
  Graph g;
  const Type type{DType::k_f32, {n}, {1}};
  const ValueId x = g.add_input(type, 0), w = g.add_constant(type, 0, ValueKind::kConstant);
  const OpId op = g.add_op(OpCode::k_add, {x, w}, {}, {type});
  g.outputs.push_back({g.ops[op].results[0], kNone, kNone});
  return *write_region(g);
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class GpuWorker : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    for (const HardwareItem& item : find_hardware())
      if (!driver && item.torch_device && item.torch_device->kind != Device::kCpu) {
        Result<std::shared_ptr<DeviceDriver>> found = DeviceDriver::of(item);
        if (found.ok()) driver = *found;
        else std::printf("%s\n", found.status().text().c_str());
      }
  }
  void SetUp() override {
    if (!driver) GTEST_SKIP() << "no GPU whose driver shares memory";
    ::setenv("KEIRIN_FAULT_SWITCH", switch_.c_str(), 1);
    free_before_ = driver->bytes().free;
  }
  // The device still works for this process, and has what it had.
  void TearDown() override {
    if (!driver) return;
    const TensorRef at = on_device({1, 2, 3});
    EXPECT_EQ(from_device(*at), (std::vector<float>{1, 2, 3}));
    EXPECT_TRUE(workers("run").empty());
    EXPECT_NEAR(static_cast<double>(driver->bytes().free), static_cast<double>(free_before_), 64 << 20);
  }

  static fs::path built() { return fs::read_symlink("/proc/self/exe").parent_path(); }

  HostOptions options() {
    HostOptions o;
    o.paths = {built() / "faults/gpu"};
    o.search = false;
    o.cache_dir = folder_.path() + "/cache";
    o.worker = built() / "keirin-worker";
    o.services = &services_;
    o.compile_in = CompileIn::kChild;
    o.run_in = RunIn::kWorker;
    o.run_deadline = milliseconds(20000);
    CacheOptions cache;
    cache.dir = o.cache_dir;
    cache_ = std::make_unique<Cache>(cache);
    o.quarantine = open_quarantine(cache_.get());
    return o;
  }
  static std::unique_ptr<PluginHost> open(const HostOptions& o) {
    Result<std::unique_ptr<PluginHost>> host = PluginHost::open(o);
    EXPECT_TRUE(host.ok()) << host.status().text();
    for (const PluginReport& report : (*host)->reports()) EXPECT_TRUE(report.used) << report.reason;
    return std::move(host).value();
  }
  void turn(const std::string& word) {
    std::ofstream(switch_ + ".new") << word;
    fs::rename(switch_ + ".new", switch_);
  }

  static TensorRef on_device(const std::vector<float>& values) {
    const uint64_t bytes = values.size() * sizeof(float);
    Result<DeviceMemoryRef> memory = driver->allocate(bytes);
    EXPECT_TRUE(memory.ok()) << memory.status().text();
    EXPECT_TRUE(driver->write((*memory)->data(), values.data(), bytes, driver->own_stream()).ok());
    EXPECT_TRUE(driver->wait(driver->own_stream()).ok());
    const TensorSpec spec{DType::k_f32, {static_cast<int64_t>(values.size())}, {}, driver->device()};
    char* const data = (*memory)->data();
    return std::make_shared<test::HeapTensor>(spec, data, *memory);
  }
  static std::vector<float> from_device(const Tensor& tensor, uint64_t stream = driver->own_stream()) {
    std::vector<float> values(static_cast<size_t>(tensor.sizes()[0]));
    EXPECT_TRUE(driver->read(values.data(), tensor.data(), values.size() * sizeof(float), stream).ok());
    EXPECT_TRUE(driver->wait(stream).ok());
    return values;
  }

  // One run over -1, 2, -1, 2, ...; what it did to the caller's tensors is checked here, whatever it answers.
  static Status run(Executable& executable, int64_t n, uint64_t stream = driver->own_stream()) {
    std::vector<float> values(static_cast<size_t>(n)), right(values.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] = i % 2 ? 2 : -1, right[i] = std::max(values[i], 0.f);
    const TensorRef in = on_device(values), out = on_device(std::vector<float>(values.size(), kUntouched));
    const krn_tensor input = view_of(*in, KRN_TENSOR_READ_ONLY), output = view_of(*out);
    Status status = executable.run(&input, 1, &output, 1, nullptr, stream);
    EXPECT_EQ(from_device(*out, stream), status.ok() ? right : std::vector<float>(values.size(), kUntouched)) << status.text();
    EXPECT_EQ(from_device(*in, stream), values) << "an input was changed";
    return status;
  }

  // The stream does nothing for so long.
  template <int kMilliseconds>
  static void hold_up() {
    const bool nvidia = driver->device().kind == Device::kCuda;
    void* const library = ::dlopen(nvidia ? "libcuda.so.1" : "libamdhip64.so.7", RTLD_NOW | RTLD_NOLOAD);
    const auto call_on = reinterpret_cast<int (*)(void*, void (*)(void*), void*)>(
        library ? ::dlsym(library, nvidia ? "cuLaunchHostFunc" : "hipLaunchHostFunc") : nullptr);
    ASSERT_NE(call_on, nullptr);
    void* const stream = reinterpret_cast<void*>(static_cast<uintptr_t>(driver->own_stream()));
    ASSERT_EQ(call_on(stream, [](void*) { std::this_thread::sleep_for(milliseconds(kMilliseconds)); }, nullptr), 0);
  }

  static inline std::shared_ptr<DeviceDriver> driver;
  test::HeapServices services_;
  test::TempFolder folder_;
  const std::string switch_ = folder_.path() + "/switch";
  std::unique_ptr<Cache> cache_;
  uint64_t free_before_ = 0;
};

class GpuFaults : public GpuWorker, public testing::WithParamInterface<RunFault> {};

TEST_P(GpuFaults, CostOneRun) {
  const RunFault fault = GetParam();
  const bool hangs = fault.code == Code::k_timeout;
  {
    HostOptions o = options();
    const auto host = open(o);
    ASSERT_EQ(host->devices().size(), 1u);
    PluginDevice& device = *host->devices()[0];
    EXPECT_FALSE(device.can_record());
    const auto first = make_relu(device, 8), second = make_relu(device, 100);
    ASSERT_TRUE(first.ok()) << first.status().text();
    ASSERT_TRUE(second.ok()) << second.status().text();
    EXPECT_TRUE((*first)->info().in_worker);
    for (int i = 0; i < 8; ++i) ASSERT_TRUE(run(**first, 8).ok());
    ASSERT_TRUE(run(**second, 100, 0).ok()) << "on the default stream";
  }
  {
    HostOptions o = options();
    if (hangs) o.run_deadline = milliseconds(2000);
    const auto host = open(o);
    PluginDevice& device = *host->devices()[0];
    const auto first = make_relu(device, 8), second = make_relu(device, 100);
    ASSERT_TRUE(first.ok() && second.ok());
    ASSERT_TRUE(run(**first, 8).ok());
    test::expect_costs_one_run(
        fault, *host, **first, **second, [](Executable& executable, int64_t n) { return run(executable, n); },
        [this](const std::string& word) { turn(word); });
    if (fault.after == RunFault::kAWhile) {
      std::this_thread::sleep_for(milliseconds(1100));
      EXPECT_TRUE(run(**first, 8).ok()) << "after a rest";
    }
  }
  const auto next = open(options());
  EXPECT_EQ(next->reports()[0].quarantined.size(), fault.after == RunFault::kKept ? 1u : 0u);
}

INSTANTIATE_TEST_SUITE_P(All, GpuFaults,
                         testing::Values(RunFault{"crash", Code::k_crashed, "crashed in run (signal 11", RunFault::kKept},
                                         RunFault{"exit", Code::k_crashed, "ended the process in run (exit status 0", RunFault::kKept},
                                         RunFault{"hang", Code::k_timeout, "hung in run (no end within 2000 ms)", RunFault::kKept},
                                         RunFault{"endless", Code::k_timeout, "hung in run (no end within 2000 ms)", RunFault::kKept},
                                         RunFault{"wild", Code::k_crashed, "the device answers 700", RunFault::kKept},
                                         RunFault{"lost", Code::k_crashed, "the device is gone", RunFault::kKept},
                                         RunFault{"overrun", Code::k_wrong_result, "wrote past the end of output 0", RunFault::kKept},
                                         RunFault{"before", Code::k_wrong_result, "wrote past the end of input 0", RunFault::kKept},
                                         RunFault{"memory", Code::k_exhausted, "no memory left", RunFault::kAWhile},
                                         RunFault{"error", Code::k_internal, "as it was told to", RunFault::kNotJudged}),
                         [](const auto& info) { return std::string(info.param.word); });

// What it takes of the device goes back with the worker, before it is all there is.
TEST_F(GpuWorker, ALeakOnTheDeviceEndsTheWorker) {
  const auto host = open(options());
  const auto made = make_relu(*host->devices()[0], 8), other = make_relu(*host->devices()[0], 100);
  ASSERT_TRUE(made.ok() && other.ok());
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(run(**made, 8).ok());
  const pid_t worker = workers("run").at(0);
  turn("leak");
  Status status;
  int runs = 0;
  while (status.ok() && ++runs < 100) status = run(**made, 8);  // 1/256 of the device each
  std::printf("after %d runs that leaked: %s\n", runs, status.text().c_str());
  EXPECT_EQ(status.code(), Code::k_exhausted) << status.text();
  EXPECT_TRUE(has(status.text(), "MiB of the device's memory in its runs")) << status.text();
  EXPECT_LT(runs, 40);
  turn("");
  EXPECT_NE(::kill(worker, 0), 0) << "the process that has the memory is still there";
  EXPECT_TRUE(run(**other, 100).ok());
  std::this_thread::sleep_for(milliseconds(1100));
  EXPECT_TRUE(run(**made, 8).ok()) << "after a rest";
}

// A look takes as long as a short run, so later ones are not all looked at.
TEST_F(GpuWorker, WritingPastTheEndIsFoundInServiceToo) {
  const auto host = open(options());
  const auto made = make_relu(*host->devices()[0], 8);
  ASSERT_TRUE(made.ok());
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(run(**made, 8).ok());
  turn("overrun");
  Status status;
  int runs = 0;
  while (status.ok() && ++runs < 100) status = run(**made, 8);
  EXPECT_EQ(status.code(), Code::k_wrong_result) << status.text();
  EXPECT_LE(runs, 64);
}

TEST_F(GpuWorker, ALargeRegionIsLookedAtToo) {
  const auto host = open(options());
  const auto made = make_relu(*host->devices()[0], kLarge);
  ASSERT_TRUE(made.ok());
  ASSERT_TRUE(run(**made, kLarge).ok());
  turn("overrun");
  const Status status = run(**made, kLarge);
  EXPECT_TRUE(has(status.text(), "wrote past the end of output 0")) << status.text();
}

TEST_F(GpuWorker, APluginThatAsksForMemoryOfTheDeviceGetsTheWorkers) {
  const auto host = open(options());
  const auto made = make_relu(*host->devices()[0], 8);
  ASSERT_TRUE(made.ok());
  turn("asks");
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(run(**made, 8).ok());
}

TEST_F(GpuWorker, WhatAPluginDoesToItsInputsStaysThere) {
  const auto host = open(options());
  const auto made = make_relu(*host->devices()[0], 8);
  ASSERT_TRUE(made.ok());
  turn("inputs");
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(run(**made, 8).ok());  // run() looks at the inputs
}

TEST_F(GpuWorker, WeightsAreCopiesOfTheWorkersAndTakenAlongIntoTheNext) {
  const auto host = open(options());
  const RegionBytes region = add_region(4);
  const std::vector<float> weights{10, 20, 30, 40};
  const TensorRef w = on_device(weights);
  auto add = host->devices()[0]->compile({region.bytes, region.hash, {w}}, {}, {});
  ASSERT_TRUE(add.ok()) << add.status().text();
  const auto right = [&] {
    const TensorRef x = on_device({1, 2, 3, 4}), y = on_device({0, 0, 0, 0});
    const krn_tensor inputs[] = {view_of(*x, KRN_TENSOR_READ_ONLY), view_of(*w, KRN_TENSOR_READ_ONLY)}, output = view_of(*y);
    const Status status = (*add)->run(inputs, 2, &output, 1, nullptr, driver->own_stream());
    EXPECT_TRUE(status.ok()) << status.text();
    return status.ok() ? from_device(*y) : std::vector<float>();
  };
  const std::vector<float> expected{11, 22, 33, 44};
  EXPECT_EQ(right(), expected);
  const uint64_t held = driver->bytes().free;
  auto twin = host->devices()[0]->compile({region.bytes, region.hash, {w}}, {}, {});
  ASSERT_TRUE(twin.ok());
  EXPECT_LE(held - driver->bytes().free, DeviceDriver::kLentUnit + (64u << 10)) << "arguments of its own, the weights once";
  turn("weights");
  EXPECT_EQ(right(), expected);
  turn("");
  EXPECT_EQ(right(), (std::vector<float>{43, 22, 33, 44})) << "the copy is the worker's to spoil";
  EXPECT_EQ(from_device(*w), weights);
  const auto bad = make_relu(*host->devices()[0], 8);
  ASSERT_TRUE(bad.ok());
  turn("crash");
  EXPECT_EQ(run(**bad, 8).code(), Code::k_crashed);
  turn("");
  EXPECT_EQ(right(), expected) << "in a fresh worker, with fresh copies";
}

TEST_F(GpuWorker, AWorkerThatSomebodyKilledAccusesNobodyForGood) {
  const auto host = open(options());
  const auto first = make_relu(*host->devices()[0], 8), second = make_relu(*host->devices()[0], 9);
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_EQ(workers("run").size(), 1u);
  ::kill(workers("run")[0], SIGKILL);
  EXPECT_EQ(run(**first, 8).code(), Code::k_exhausted);
  EXPECT_TRUE(run(**second, 9).ok()) << "in a fresh worker";
  EXPECT_TRUE(read_bad_records(*cache_).empty());
  std::this_thread::sleep_for(milliseconds(1100));
  EXPECT_TRUE(run(**first, 8).ok()) << "after a rest";
}

// What the memory held before, when it was this process's own, is not for a worker to read.
TEST_F(GpuWorker, WhatIsLentIsWrittenOverAndWhole) {
  for (int turn = 0; turn < 2; ++turn) {  // the second time in memory that was in use
    const RegionBytes region = test::relu_region(1000);
    Result<SharedArguments> layout = SharedArguments::of_region(region.bytes, driver->device());
    ASSERT_TRUE(layout.ok());
    const auto made = DeviceArguments::make(driver, std::move(*layout));
    ASSERT_TRUE(made.ok()) << made.status().text();
    const DeviceMemory& block = *(*made)->block();
    EXPECT_EQ(block.bytes() % DeviceDriver::kLentUnit, 0u);
    std::vector<uint8_t> bytes(block.bytes());
    EXPECT_TRUE(driver->read(bytes.data(), block.data(), bytes.size(), driver->own_stream()).ok());
    EXPECT_TRUE(driver->wait(driver->own_stream()).ok());
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), SharedArguments::kPattern), static_cast<ptrdiff_t>(bytes.size()));
    EXPECT_TRUE(driver->fill(block.data(), 0, block.bytes(), driver->own_stream()).ok());
    EXPECT_TRUE(driver->wait(driver->own_stream()).ok());
  }
}

// A run that waits for the caller's own work for longer than a run may take is not a plugin that hangs.
TEST_F(GpuWorker, ADeviceThatIsBusyAccusesNobody) {
  HostOptions o = options();
  o.run_deadline = milliseconds(500);
  const auto host = open(o);
  const auto made = make_relu(*host->devices()[0], 8);
  ASSERT_TRUE(made.ok());
  ASSERT_TRUE(run(**made, 8).ok());
  const TensorRef in = on_device(std::vector<float>(8, 1)), out = on_device(std::vector<float>(8, kUntouched));
  const krn_tensor input = view_of(*in, KRN_TENSOR_READ_ONLY), output = view_of(*out);
  hold_up<2000>();
  const Status status = (*made)->run(&input, 1, &output, 1, nullptr, driver->own_stream());
  EXPECT_EQ(status.code(), Code::k_exhausted) << status.text();
  EXPECT_TRUE(has(status.text(), "the device was busy")) << status.text();
  EXPECT_TRUE(read_bad_records(*cache_).empty());
  EXPECT_TRUE(driver->wait(driver->own_stream()).ok());
  std::this_thread::sleep_for(milliseconds(1100));
  EXPECT_TRUE(run(**made, 8).ok()) << "after a rest";
}

// Which go through the host, in rows or as they lie, or through memory of the device.
TEST_F(GpuWorker, OutputsOfAllSizesComeBackWhole) {
  const auto host = open(options());
  for (const int64_t n : {1, 2, 3, 4, 5, 15, 16, 17, 63, 1000, 1001, 16383, 16384, 16385, 100000, 300001}) {
    const auto made = make_relu(*host->devices()[0], n);
    ASSERT_TRUE(made.ok()) << made.status().text();
    std::vector<float> values(static_cast<size_t>(n));
    for (int turn = 0; turn < 3; ++turn) {
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i + 1) + 0.25f * static_cast<float>(turn);
      const TensorRef in = on_device(values), out = on_device(std::vector<float>(values.size() + 4, kUntouched));
      const krn_tensor input = view_of(*in, KRN_TENSOR_READ_ONLY), output = view_of(*out);
      const Status status = (*made)->run(&input, 1, &output, 1, nullptr, turn == 1 ? 0 : driver->own_stream());
      EXPECT_TRUE(status.ok()) << status.text();
      std::vector<float> right = values;
      right.resize(values.size() + 4, kUntouched);
      EXPECT_TRUE(from_device(*out) == right) << n << " elements";
    }
  }
}

TEST_F(GpuWorker, InputsThatComeLateAreWaitedFor) {
  const auto host = open(options());
  const auto made = make_relu(*host->devices()[0], 8);
  ASSERT_TRUE(made.ok());
  const uint64_t stream = driver->own_stream();
  for (const float value : {1.f, 2.f, 3.f}) {
    const std::vector<float> values(8, value);
    const TensorRef in = on_device(values), out = on_device(std::vector<float>(8, kUntouched));
    const krn_tensor input = view_of(*in, KRN_TENSOR_READ_ONLY), output = view_of(*out);
    hold_up<50>();
    const Status status = (*made)->run(&input, 1, &output, 1, nullptr, stream);
    EXPECT_TRUE(status.ok()) << status.text();
    EXPECT_EQ(from_device(*out), values);
  }
}

// The next call may come on another stream while the device still copies this one's outputs out.
TEST_F(GpuWorker, OutputsAreCopiedOutBeforeTheNextRun) {
  const RegionBytes region = test::relu_region(8);
  const auto made = DeviceArguments::make(driver, *SharedArguments::of_region(region.bytes, driver->device()));
  ASSERT_TRUE(made.ok()) << made.status().text();
  const TensorRef in = on_device(std::vector<float>(8, 1)), out = on_device(std::vector<float>(8, 1));
  const krn_tensor input = view_of(*in), output = view_of(*out);
  ASSERT_TRUE((*made)->put(&input, driver->own_stream()).ok());
  const auto begin = std::chrono::steady_clock::now();
  hold_up<200>();
  ASSERT_TRUE((*made)->take(&output, driver->own_stream()).ok());
  ASSERT_TRUE((*made)->put(&input, 0).ok());
  ASSERT_TRUE(driver->wait(0).ok());
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(150));
}

TEST_F(GpuWorker, AForkedCopyIsRefusedAndLeavesTheWorkerAlone) {
  const auto host = open(options());
  auto made = make_relu(*host->devices()[0], 8);
  ASSERT_TRUE(made.ok());
  ASSERT_TRUE(run(**made, 8).ok());
  const pid_t pid = ::fork();
  if (pid == 0) {
    const Status status = (*made)->run(nullptr, 0, nullptr, 0, nullptr, 0);
    *made = nullptr;
    ::_exit(status.ok() ? 3 : 0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(run(**made, 8).ok());
}

TEST_F(GpuWorker, CallsOfManyThreadsAndStreamsAreRight) {
  const auto host = open(options());
  const auto made = make_relu(*host->devices()[0], 64);
  ASSERT_TRUE(made.ok());
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) failed += !run(**made, 64, t % 2 ? 0 : driver->own_stream()).ok();
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(workers("run").size(), 1u);
}

}  // namespace
}  // namespace keirin
