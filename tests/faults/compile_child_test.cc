// SPDX-License-Identifier: Apache-2.0
//
// Every way in which a plugin can go wrong while it claims or compiles costs one attempt: the host lives, the region is refused
// with the reason, the next attempt is not made, neither in this process nor in the next one, and the good plugin beside it works.
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "core/host/call/host_tables.h"
#include "core/host/guard/contained_device.h"
#include "tests/faults/fault_fixture.h"

namespace keirin {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using test::has;
using test::relu_region;
using test::report_of;
using test::try_relu;

class CompileChildFaults : public test::PluginFaults {
 protected:
  HostOptions child_options(const std::vector<std::string>& folders) {
    HostOptions o = kept_options(folders);
    o.compile_in = CompileIn::kChild;
    return o;
  }
};

struct CompileFault {
  const char* name;
  Code code;
  const char* reason;
  bool kept;  // on disk; else it rests for a while
};

class CompileFaults : public CompileChildFaults, public testing::WithParamInterface<CompileFault> {};

TEST_P(CompileFaults, CostOneAttemptAndAreNotTriedAgain) {
  const CompileFault fault = GetParam();
  {
    HostOptions o = child_options({fault.name, "good"});
    o.compile_deadline = milliseconds(has(fault.name, "hang") ? 500 : 20000);
    o.compile_memory_bytes = 512 << 20;
    const auto host = open(o);
    PluginDevice* const bad = device_of(*host, fault.name);
    ASSERT_NE(bad, nullptr);
    const Status first = try_relu(*bad, 8);
    std::printf("%-18s %s\n", fault.name, first.text().c_str());
    EXPECT_EQ(first.code(), fault.code) << first.text();
    EXPECT_TRUE(has(first.text(), fault.reason)) << first.text();
    const Status second = try_relu(*bad, 8);
    EXPECT_TRUE(has(second.text(), fault.kept ? "quarantined" : "at rest")) << second.text();
    EXPECT_EQ(host->take_incidents().size(), 1u);
    const Status good = try_relu(*device_of(*host, "good"), 8);
    EXPECT_TRUE(good.ok()) << good.text();
  }
  const auto next = open(child_options({fault.name}));
  EXPECT_EQ(report_of(*next, fault.name)->quarantined.size(), fault.kept ? 1u : 0u);
  EXPECT_TRUE(cache_->check().empty());
  if (fault.kept) {
    const Status again = try_relu(*device_of(*next, fault.name), 8);
    EXPECT_TRUE(has(again.text(), "quarantined")) << again.text();
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, CompileFaults,
    testing::Values(CompileFault{"crash_claim", Code::k_crashed, "crashed in claim (signal 11", true},
                    CompileFault{"crash_compile", Code::k_crashed, "crashed in compile (signal 11", true},
                    CompileFault{"abort_compile", Code::k_crashed, "crashed in compile (signal 6", true},
                    CompileFault{"exit_compile", Code::k_crashed, "ended the process in compile (exit status 0", true},
                    CompileFault{"hang_compile", Code::k_timeout, "hung in compile (no end within 500 ms)", true},
                    CompileFault{"fill_compile", Code::k_exhausted, "the disk is full", false},
                    CompileFault{"garbage_claim", Code::k_corrupt, "not a message", true},
                    CompileFault{"garbage_answer", Code::k_corrupt, "not a message", true},
                    CompileFault{"empty_artifact", Code::k_corrupt, "refuses here", true},
                    CompileFault{"garbage_artifact", Code::k_corrupt, "another length", true}),
    [](const auto& info) { return std::string(info.param.name); });

// The limit makes the allocation fail, and the exception ends at the boundary: the machine had too little, as far as one can tell.
TEST_F(CompileChildFaults, AMemoryBombEndsAtTheLimit) {
  if (sanitizer_kind() != 0) GTEST_SKIP() << "a sanitizer's shadow memory leaves no room for a limit";
  HostOptions o = child_options({"bomb_compile", "good"});
  o.compile_memory_bytes = 256 << 20;
  const auto host = open(o);
  const Status status = try_relu(*device_of(*host, "bomb_compile"), 8);
  std::printf("%-18s %s\n", "bomb_compile", status.text().c_str());
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), Code::k_exhausted) << status.text();
  EXPECT_TRUE(try_relu(*device_of(*host, "good"), 8).ok());
}

// The framework brings copies of vendors' libraries that no search finds, or another release than the one that it finds.
TEST_F(CompileChildFaults, WhatTheHostHoldsIsWhatTheChildOpens) {
  {
    const auto host = open(child_options({"needs_held"}));
    const Status status = try_relu(*host->devices()[0], 8);
    EXPECT_TRUE(has(status.text(), "libfault_held.so.1")) << status.text();
  }
  void* const held = ::dlopen((test::kFaults + "/held/libfault_held.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(held, nullptr) << ::dlerror();
  const auto host = open(child_options({"needs_held"}));
  const Status status = try_relu(*host->devices()[0], 8);
  EXPECT_TRUE(status.ok()) << status.text();
  ::dlclose(held);
}

TEST_F(CompileChildFaults, AThrowingPluginIsAnErrorAndTheChildLives) {
  const auto host = open(child_options({"throw_compile"}));
  for (int i = 0; i < 2; ++i) {
    const Status status = try_relu(*host->devices()[0], 8);
    EXPECT_EQ(status.code(), Code::k_internal) << status.text();
    EXPECT_TRUE(has(status.text(), "threw an exception")) << status.text();
  }
}

TEST_F(CompileChildFaults, ThreeRegionsQuarantineThePluginAndForgivingLetsItBack) {
  {
    const auto host = open(child_options({"crash_compile"}));
    for (const int64_t n : {8, 9, 10}) EXPECT_EQ(try_relu(*host->devices()[0], n).code(), Code::k_crashed);
    const Status other = try_relu(*host->devices()[0], 11);
    EXPECT_TRUE(has(other.text(), "failed on 3 regions")) << other.text();
  }
  {
    const auto host = open(child_options({"crash_compile", "good"}));
    const PluginReport* bad = report_of(*host, "crash_compile");
    EXPECT_FALSE(bad->used);
    std::printf("%-18s %s\n", "three regions", bad->reason.c_str());
    EXPECT_TRUE(has(bad->reason, "quarantined: crash_compile failed on 3 regions")) << bad->reason;
    EXPECT_TRUE(report_of(*host, "good")->used);
  }
  EXPECT_EQ(forgive(*cache_, "another"), 0u);
  EXPECT_EQ(forgive(*cache_, "crash_compile"), 3u);
  EXPECT_TRUE(open(child_options({"crash_compile"}))->reports()[0].used);
}

TEST_F(CompileChildFaults, APluginWithoutArtifactsCompilesHereAndSaysSo) {
  const auto host = open(child_options({"no_artifact"}));
  const Status status = try_relu(*host->devices()[0], 8);
  EXPECT_TRUE(status.ok()) << status.text();
  const std::vector<std::string> told = host->take_incidents();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_TRUE(has(told[0], "compiles in this process")) << told[0];
}

TEST_F(CompileChildFaults, ADeviceThatOneProcessMayOpenCompilesHereAndSaysSo) {
  const auto host = open(child_options({"one_process"}));
  const Status status = try_relu(*host->devices()[0], 8);
  EXPECT_TRUE(status.ok()) << status.text();
  const std::vector<std::string> told = host->take_incidents();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_TRUE(has(told[0], "compiles in this process")) << told[0];
  EXPECT_TRUE(has(told[0], "no memory for another process")) << told[0];
}

TEST_F(CompileChildFaults, AChildThatWasEndedIsFollowedByAnother) {
  const auto host = open(child_options({"good"}));
  auto& device = static_cast<ContainedDevice&>(*host->devices()[0]);
  const test::World before;
  const auto more_children = [&] {
    const std::vector<std::string> changes = before.changes();
    return std::count_if(changes.begin(), changes.end(), [](const std::string& line) { return has(line, "child left behind"); });
  };
  device.end_child();  // there is none
  EXPECT_TRUE(try_relu(device, 8).ok());
  EXPECT_EQ(more_children(), 1);
  device.end_child();
  EXPECT_EQ(more_children(), 0);
  EXPECT_TRUE(try_relu(device, 16).ok());
  EXPECT_TRUE(host->take_incidents().empty()) << "nobody is to blame";
}

TEST_F(CompileChildFaults, WhereNoChildCanBeStartedItCompilesHereAndSaysSo) {
  { (void)open(child_options({"good"})); }  // the verdict is remembered, so the probe needs no child either
  HostOptions o = child_options({"good"});
  o.worker = "/nowhere/keirin-worker";
  const auto host = open(o);
  ASSERT_EQ(host->devices().size(), 1u);
  EXPECT_TRUE(try_relu(*host->devices()[0], 8).ok());
  const std::vector<std::string> told = host->take_incidents();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_TRUE(has(told[0], "cannot be started")) << told[0];
}

TEST_F(CompileChildFaults, AHostThatReapsItsChildrenItselfSeesTheSame) {
  struct sigaction ignore {}, before {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGCHLD, &ignore, &before);
  const auto host = open(child_options({"crash_compile", "good"}));
  EXPECT_TRUE(try_relu(*device_of(*host, "good"), 8).ok());
  const Status status = try_relu(*device_of(*host, "crash_compile"), 8);
  ::sigaction(SIGCHLD, &before, nullptr);
  EXPECT_EQ(status.code(), Code::k_crashed) << status.text();
}

TEST_F(CompileChildFaults, CancellingEndsTheChildAndAccusesNobody) {
  HostOptions o = child_options({"hang_compile"});
  o.compile_deadline = milliseconds(20000);
  const auto host = open(o);
  const RegionBytes region = relu_region(8);
  std::atomic<bool> cancel{false};
  CompileOptions compile;
  compile.cancel = &cancel;
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(100));
    cancel = true;
  });
  const auto begin = std::chrono::steady_clock::now();
  const auto made = host->devices()[0]->compile({region.bytes, region.hash, {}}, {}, compile);
  later.join();
  EXPECT_EQ(made.status().code(), Code::k_cancelled) << made.status().text();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(5000)) << "the compile has 20 s";
  EXPECT_TRUE(read_bad_records(*cache_).empty());
}

// The child of a host that was killed in the middle of a hanging compile ends with it.
TEST_F(CompileChildFaults, AHangingChildDoesNotOutliveItsHost) {
  const HostOptions o = child_options({"hang_compile"});
  int ends[2];
  ASSERT_EQ(::pipe2(ends, 0), 0);  // inherited by host and, unlike other descriptors, watched for its end here
  const pid_t pid = ::fork();
  if (pid == 0) {
    const auto host = open(o);
    ::close(ends[0]);
    (void)!::write(ends[1], "x", 1);
    (void)try_relu(*host->devices()[0], 8);
    ::_exit(0);
  }
  ::close(ends[1]);
  char c;
  ASSERT_EQ(::read(ends[0], &c, 1), 1);
  const std::string list = "/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children";
  const bool listed = fs::exists(list);
  pid_t child = 0;
  for (int i = 0; i < 200 && listed && child == 0; ++i) {
    std::ifstream(list) >> child;
    std::this_thread::sleep_for(milliseconds(20));
  }
  std::this_thread::sleep_for(milliseconds(200));  // into the hang
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  ::close(ends[0]);
  if (!listed) GTEST_SKIP() << "this kernel does not list children";
  ASSERT_GT(child, 0);
  bool gone = false;
  for (int i = 0; i < 100 && !gone; ++i) {
    std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
    std::string line;
    gone = !std::getline(stat, line) || has(line, ") Z ");
    if (!gone) std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_TRUE(gone);
}

TEST_F(CompileChildFaults, AWarmChildCostsLittle) {
  const auto host = open(child_options({"good"}));
  ASSERT_TRUE(try_relu(*host->devices()[0], 7).ok());  // starts the child
  const auto begin = std::chrono::steady_clock::now();
  constexpr int kRegions = 50;
  for (int n = 0; n < kRegions; ++n) ASSERT_TRUE(try_relu(*host->devices()[0], 100 + n).ok());
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count() / kRegions;
  std::printf("claim and compile of one region in the warm child: %.2f ms\n", ms);
  EXPECT_LT(ms, 250) << "on a busy machine";
}

}  // namespace
}  // namespace keirin
