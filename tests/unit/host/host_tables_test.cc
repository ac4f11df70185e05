// SPDX-License-Identifier: Apache-2.0
//
// The host's tables as a plugin sees them: by name, through C.
#include "core/host/call/host_tables.h"

#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "tests/unit/host/heap_services.h"

namespace keirin {
namespace {

template <class T>
const T* table(krn_host* host, const char* name) {
  return reinterpret_cast<const T*>(host_table(host, name, kTableMajor));
}

TEST(HostTables, ByNameAndMajor) {
  krn_host host;
  EXPECT_NE(host_table(&host, "krn.host.core", 1), nullptr);
  EXPECT_EQ(host_table(&host, "krn.host.core", 2), nullptr);
  EXPECT_EQ(host_table(&host, "krn.host.nothing", 1), nullptr);
  EXPECT_EQ(host_table(&host, nullptr, 1), nullptr);
  EXPECT_EQ(host_table(&host, "krn.host.memory", 1), nullptr) << "absent where there is no memory to give";
  for (const char* name : {"krn.host.core", "krn.host.consts", "krn.host.threads"}) {
    EXPECT_EQ(host_table(&host, name, 1)->major, 1);
    EXPECT_GT(host_table(&host, name, 1)->size, sizeof(krn_table));
  }
}

TEST(HostTables, ErrorsEndInAStatusAndNeverOverflow) {
  krn_host host;
  const auto* core = table<krn_host_core>(&host, "krn.host.core");
  krn_err err;
  core->err_set(&err, KRN_STATUS_exhausted, str_of("no memory"));
  core->err_attach(&err, str_of("bytes"), str_of("12"));
  const Status status = status_of(KRN_STATUS_exhausted, err, "acme 1.0: krn.exec.run");
  EXPECT_EQ(status.code(), Code::k_exhausted);
  EXPECT_EQ(status.message().what, "no memory [bytes=12]");
  EXPECT_EQ(status.message().where, "acme 1.0: krn.exec.run");
  core->err_set(nullptr, KRN_STATUS_internal, str_of("ignored"));
  const std::string huge(100000, 'x');
  core->err_set(&err, KRN_STATUS_internal, str_of(huge));
  core->err_attach(&err, str_of(huge), str_of(huge));
  EXPECT_EQ(err.size, sizeof(err.text));
  EXPECT_EQ(status_of(-77, err, "").code(), Code::k_internal);
  EXPECT_TRUE(status_of(KRN_STATUS_ok, err, "").ok());
}

TEST(HostTables, MemoryIsAligned) {
  krn_host host;
  const auto* core = table<krn_host_core>(&host, "krn.host.core");
  for (const uint64_t align : {1, 8, 64, 4096})
    for (const uint64_t size : {0, 1, 63, 1000}) {
      void* p = core->alloc(&host, size, align);
      ASSERT_NE(p, nullptr);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % align, 0u);
      core->free(&host, p);
    }
  EXPECT_EQ(core->alloc(&host, 8, 24), nullptr) << "no power of two";
  EXPECT_EQ(core->alloc(&host, UINT64_MAX - 2, 64), nullptr);
}

TEST(HostTables, WeightsAreOpenForTheTimeOfACall) {
  krn_host host;
  const auto* consts = table<krn_host_consts>(&host, "krn.host.consts");
  const TensorRef w = test::tensor_of<float>(DType::k_f32, {2, 3}, {1, 2, 3, 4, 5, 6});
  krn_tensor out{};
  krn_err err;
  uint64_t set = 0;
  {
    const CallScope scope(&host, {w}, nullptr, 0);
    set = scope.weights();
    ASSERT_EQ(consts->open(&host, set, 0, &out, &err), KRN_STATUS_ok);
    EXPECT_EQ(out.data, w->data());
    EXPECT_EQ(out.ndim, 2);
    EXPECT_EQ(out.shape[1], 3);
    EXPECT_EQ(out.strides[0], 3);
    EXPECT_EQ(out.dtype_code, 2);
    EXPECT_EQ(out.dtype_bits, 32);
    EXPECT_EQ(out.device_type, 1);
    EXPECT_EQ(out.storage_bytes, 24u);
    EXPECT_EQ(out.flags, KRN_TENSOR_READ_ONLY);
    EXPECT_EQ(consts->open(&host, set, 1, &out, &err), KRN_STATUS_invalid_input);
    consts->close(&host, set, 0);
  }
  EXPECT_EQ(consts->open(&host, set, 0, &out, &err), KRN_STATUS_invalid_input);
  const CallScope none(&host, {}, nullptr, 0);
  EXPECT_EQ(consts->open(&host, none.weights(), 0, &out, &err), KRN_STATUS_unsupported);
}

TEST(HostTables, CancelByFlagDeadlineAndEnd) {
  krn_host host;
  const auto* core = table<krn_host_core>(&host, "krn.host.core");
  std::atomic<bool> flag{false};
  uint64_t token = 0;
  {
    const CallScope scope(&host, {}, &flag, 0);
    token = scope.token();
    EXPECT_EQ(core->cancelled(&host, token), 0u);
    flag = true;
    EXPECT_EQ(core->cancelled(&host, token), 1u);
  }
  flag = false;
  EXPECT_EQ(core->cancelled(&host, token), 1u) << "the call is over";
  EXPECT_EQ(core->cancelled(&host, 0), 0u);
  const CallScope late(&host, {}, nullptr, core->now_ns(&host) - 1);
  EXPECT_EQ(core->cancelled(&host, late.token()), 1u);
}

struct Seen {
  std::mutex mutex;
  std::vector<int> times = std::vector<int>(1000);
  std::atomic<int> inside[16] = {};
  std::atomic<bool> clash{false};
  std::atomic<int> slices{0};
  std::set<int> threads;
};

TEST(HostTables, ParallelForCoversOnceWithDistinctThreads) {
  krn_host host;
  test::HeapServices services;
  host.services = &services;
  const auto* threads = table<krn_host_threads>(&host, "krn.host.threads");
  ASSERT_EQ(threads->num_threads(&host), 4);
  Seen seen;
  const auto fn = [](void* ctx, int64_t begin, int64_t end, int32_t thread) {
    auto* s = static_cast<Seen*>(ctx);
    ++s->slices;
    if (thread < 0 || thread >= 4 || s->inside[thread]++ != 0) s->clash = true;
    for (int64_t i = begin; i < end; ++i) ++s->times[static_cast<size_t>(i)];
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    --s->inside[thread];
    const std::lock_guard guard(s->mutex);
    s->threads.insert(thread);
  };
  threads->parallel_for(&host, 1000, 10, fn, &seen);
  EXPECT_FALSE(seen.clash) << "two slices at once under one number, or a number out of range";
  for (const int t : seen.times) EXPECT_EQ(t, 1);
  EXPECT_GT(seen.threads.size(), 1u);
  threads->parallel_for(&host, 0, 1, fn, nullptr);
  for (const int64_t grain : {-1, 0, 1}) {  // what is not a grain is the smallest
    Seen two;
    threads->parallel_for(&host, 2, grain, fn, &two);
    EXPECT_EQ(two.slices, 2) << grain;
    EXPECT_EQ(two.times[0] + two.times[1], 2);
  }
  host.services = nullptr;
  Seen alone;
  threads->parallel_for(&host, 1000, 10, fn, &alone);
  for (const int t : alone.times) EXPECT_EQ(t, 1);
}

TEST(HostTables, DeviceMemoryIsCountedAndReturned) {
  krn_host host;
  test::HeapServices services;
  host.services = &services;
  const auto* memory = table<krn_host_memory>(&host, "krn.host.memory");
  ASSERT_NE(memory, nullptr);
  krn_err err;
  void* device = nullptr;
  void* cpu = nullptr;
  ASSERT_EQ(memory->alloc(&host, nullptr, Device::kCuda, 0, 1000, 256, &device, &err), KRN_STATUS_ok);
  ASSERT_EQ(memory->alloc(&host, nullptr, Device::kCpu, 0, 1000, 64, &cpu, &err), KRN_STATUS_ok);
  EXPECT_EQ(host.device_bytes, 1000);
  memory->free(&host, nullptr, device);
  memory->free(&host, nullptr, cpu);
  memory->free(&host, nullptr, nullptr);
  EXPECT_EQ(host.device_bytes, 0);
  EXPECT_TRUE(host.device_blocks.empty());
}

TEST(HostTables, WhatAPluginDidNotFillReadsAsZero) {
  krn_claim claim{};
  claim.hdr.size = offsetof(krn_claim, num_kernels);
  claim.num_nodes = 3;
  claim.num_kernels = 77;
  const krn_claim read = read_struct(&claim);
  EXPECT_EQ(read.num_nodes, 3u);
  EXPECT_EQ(read.num_kernels, 0u);
  claim.hdr.size = sizeof(claim) + 1000;
  EXPECT_EQ(read_struct(&claim).num_kernels, 77u) << "a newer, larger struct is legal";
}

TEST(HostTables, LogAndLastWords) {
  krn_host host;
  host.plugin = "acme";
  std::vector<std::string> lines;
  host.log = [&](int level, std::string_view text) { lines.push_back(std::to_string(level) + " " + std::string(text)); };
  const auto* core = table<krn_host_core>(&host, "krn.host.core");
  core->log(&host, 1, str_of("careful"));
  EXPECT_EQ(lines, std::vector<std::string>{"1 acme: careful"});
  host.log = [](int, std::string_view) { throw std::runtime_error("a user's callback"); };
  core->log(&host, 1, str_of("careful"));
  core->breadcrumb(&host, str_of(std::string(500, 'y')));
  EXPECT_EQ(std::string(host.last_words).size(), 127u);
}

}  // namespace
}  // namespace keirin
