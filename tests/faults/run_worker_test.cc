// SPDX-License-Identifier: Apache-2.0
//
// Worker mode: whatever a plugin does in a run costs that run. The caller gets a status and outputs that nobody wrote, the region is
// not run again, other regions run in a fresh worker, and this process is as it was.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <thread>

#include "core/host/call/host_tables.h"
#include "tests/faults/fault_fixture.h"
#include "tests/faults/run_fault.h"

namespace keirin {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using test::has;
using test::make_relu;
using test::RunFault;
using test::workers;
using test::relu_region;
using test::report_of;

constexpr float kUntouched = -7;

// y = x w' + b of [rows, depth] by [columns, depth], both weights.
RegionBytes linear_region(int64_t rows, int64_t depth, int64_t columns) {
  Graph g;
  const ValueId x = g.add_input({DType::k_f32, {rows, depth}, {depth, 1}}, 0);
  const ValueId w = g.add_constant({DType::k_f32, {columns, depth}, {depth, 1}}, 0, ValueKind::kConstant);
  const ValueId b = g.add_constant({DType::k_f32, {columns}, {1}}, 1, ValueKind::kConstant);
  const OpId op = g.add_op(OpCode::k_linear, {x, w, b}, {}, {Type{DType::k_f32, {rows, columns}, {columns, 1}}});
  g.outputs.push_back({g.ops[op].results[0], kNone, kNone});
  return *write_region(g);
}

class RunWorkerFaults : public test::PluginFaults {
 protected:
  HostOptions worker_options(const std::vector<std::string>& folders) {
    HostOptions o = kept_options(folders);
    o.compile_in = CompileIn::kChild;
    o.run_in = RunIn::kWorker;
    o.run_deadline = milliseconds(20000);
    o.compile_memory_bytes = 512 << 20;
    return o;
  }

  // One run over -1, 2, -1, 2, ...; what it did to the caller's tensors is checked here, whatever it answers.
  static Status run(Executable& executable, int64_t n) {
    std::vector<float> values(n);
    for (int64_t i = 0; i < n; ++i) values[i] = i % 2 ? 2 : -1;
    const TensorRef in = test::tensor_of(DType::k_f32, {n}, values),
                    out = test::tensor_of(DType::k_f32, {n}, std::vector<float>(n, kUntouched));
    const krn_tensor input = view_of(*in, KRN_TENSOR_READ_ONLY), output = view_of(*out);
    Status status = executable.run(&input, 1, &output, 1, nullptr, 0);
    const auto *x = static_cast<const float*>(in->data()), *y = static_cast<const float*>(out->data());
    for (int64_t i = 0; i < n; ++i) {
      EXPECT_EQ(x[i], values[i]) << "an input was changed";
      EXPECT_EQ(y[i], status.ok() ? std::max(values[i], 0.f) : kUntouched) << status.text();
    }
    return status;
  }
};

class RunFaults : public RunWorkerFaults, public testing::WithParamInterface<RunFault> {};

TEST_P(RunFaults, CostOneRun) {
  const RunFault fault = GetParam();
  if (fault.word == std::string("bomb") && sanitizer_kind() != 0) GTEST_SKIP() << "a sanitizer's shadow memory leaves no room for a limit";
  {
    HostOptions o = worker_options({"switched_run"});
    if (fault.word == std::string("hang")) o.run_deadline = milliseconds(500);
    const auto host = open(o);
    PluginDevice& device = *host->devices()[0];
    const auto first = make_relu(device, 8), second = make_relu(device, 100);
    ASSERT_TRUE(first.ok()) << first.status().text();
    ASSERT_TRUE(second.ok()) << second.status().text();
    EXPECT_TRUE((*first)->info().in_worker);
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(run(**first, 8).ok());
    test::expect_costs_one_run(fault, *host, **first, **second, run, [this](const std::string& word) { turn(word); });
  }
  const auto next = open(worker_options({"switched_run"}));
  EXPECT_EQ(report_of(*next, "switched_run")->quarantined.size(), fault.after == RunFault::kKept ? 1u : 0u);
  EXPECT_TRUE(cache_->check().empty());
}

INSTANTIATE_TEST_SUITE_P(
    All, RunFaults,
    testing::Values(RunFault{"crash", Code::k_crashed, "crashed in run (signal 11", RunFault::kKept},
                    RunFault{"abort", Code::k_crashed, "crashed in run (signal 6", RunFault::kKept},
                    RunFault{"exit", Code::k_crashed, "ended the process in run (exit status 0", RunFault::kKept},
                    RunFault{"hang", Code::k_timeout, "hung in run (no end within 500 ms)", RunFault::kKept},
                    RunFault{"babble", Code::k_corrupt, "not a message", RunFault::kKept},
                    RunFault{"overrun", Code::k_wrong_result, "wrote past the end of output 0", RunFault::kKept},
                    RunFault{"far", Code::k_crashed, "crashed in run (signal 11", RunFault::kKept},
                    RunFault{"bomb", Code::k_exhausted, "", RunFault::kAWhile},
                    RunFault{"memory", Code::k_exhausted, "no memory left", RunFault::kAWhile},
                    RunFault{"throw", Code::k_internal, "threw an exception", RunFault::kNotJudged},
                    RunFault{"code", Code::k_internal, "4711", RunFault::kNotJudged},
                    RunFault{"error", Code::k_internal, "as it was told to", RunFault::kNotJudged}),
    [](const auto& info) { return std::string(info.param.word); });

// What a plugin does to its own process, or tries to do to others. `first`: how that run ends; `second`: how the next one of the same
// region does, when what was done had its time. Whatever it is, other regions run and the host is as it was.
struct Hostile {
  const char* word;
  std::optional<Code> first;  // nothing: the answer is right
  const char* reason = "";
  std::optional<Code> second = {};
  bool starves = false;  // the worker has nothing left for the next region, which is not accused of it
};

class HostilePlugins : public RunWorkerFaults, public testing::WithParamInterface<Hostile> {};

TEST_P(HostilePlugins, EndInAStatusAndNotInTheHost) {
  const Hostile hostile = GetParam();
  ++new_behaviours_;
  pid_t orphan = 0;
  {
    HostOptions o = worker_options({"switched_run"});
    o.run_deadline = milliseconds(hostile.first == Code::k_timeout ? 500 : 20000);
    const auto host = open(o);
    PluginDevice& device = *host->devices()[0];
    const auto first = make_relu(device, 8), second = make_relu(device, 100);
    ASSERT_TRUE(first.ok() && second.ok());
    ASSERT_TRUE(run(**first, 8).ok());
    turn(hostile.word);
    const Status status = run(**first, 8);
    std::printf("run %-10s %s\n", hostile.word, status.text().c_str());
    EXPECT_EQ(status.ok() ? std::nullopt : std::optional(status.code()), hostile.first) << status.text();
    EXPECT_TRUE(has(status.text(), hostile.reason)) << status.text();
    turn("");
    std::this_thread::sleep_for(milliseconds(hostile.second ? 200 : 0));
    const Status again = run(**first, 8);
    const std::optional<Code> lasting = hostile.first ? hostile.first : hostile.second;
    EXPECT_EQ(again.ok() ? std::nullopt : std::optional(again.code()), lasting) << again.text();
    const Status other = run(**second, 100);
    EXPECT_TRUE(other.ok() || (hostile.starves && other.code() == Code::k_exhausted)) << "another region: " << other.text();
    const auto third = make_relu(device, 101);
    ASSERT_TRUE(third.ok()) << third.status().text();
    EXPECT_TRUE(run(**third, 101).ok());
    std::ifstream(switch_ + ".pid") >> orphan;
  }
  for (int i = 0; orphan > 0 && ::kill(orphan, 0) == 0 && i < 100; ++i) std::this_thread::sleep_for(milliseconds(20));
  EXPECT_FALSE(orphan > 0 && ::kill(orphan, 0) == 0) << "what it started outlived it";
}

INSTANTIATE_TEST_SUITE_P(
    All, HostilePlugins,
    testing::Values(Hostile{"spin", Code::k_timeout, "hung in run"}, Hostile{"stop", Code::k_timeout, "hung in run"},
                    Hostile{"fork", Code::k_timeout, "hung in run"}, Hostile{"exec", Code::k_timeout, "hung in run"},
                    Hostile{"closes", Code::k_crashed, "ended the process in run"},
                    Hostile{"stack", Code::k_crashed, "crashed in run (signal 11"},
                    Hostile{"fpe", Code::k_crashed, "crashed in run (signal 8"},
                    Hostile{"ill", Code::k_crashed, "crashed in run (signal 4"}, Hostile{"orphan", {}}, Hostile{"folder", {}},
                    Hostile{"locale", {}}, Hostile{"mask", {}}, Hostile{"flush", {}}, Hostile{"threads", {}, "", {}, true},
                    Hostile{"files", {}},
                    Hostile{"flood", {}}, Hostile{"slow", {}}, Hostile{"shrink", {}}, Hostile{"parent", {}}, Hostile{"queue", {}},
                    Hostile{"trace", {}}, Hostile{"memory_of", {}}, Hostile{"alarm", {}, "", Code::k_crashed},
                    Hostile{"idle", {}, "", Code::k_crashed}, Hostile{"unmap", {}, "", Code::k_crashed}),
    [](const auto& info) { return std::string(info.param.word); });

TEST_F(RunWorkerFaults, ALeakEndsAtTheWorkersLimit) {
  if (sanitizer_kind() != 0) GTEST_SKIP() << "a sanitizer's shadow memory leaves no room for a limit";
  ++new_behaviours_;
  const auto host = open(worker_options({"switched_run"}));
  const auto made = make_relu(*host->devices()[0], 8), other = make_relu(*host->devices()[0], 100);
  ASSERT_TRUE(made.ok() && other.ok());
  turn("leak");
  Status status;
  int runs = 0;
  while (status.ok() && ++runs < 20) status = run(**made, 8);  // 64 MiB each, of 512
  EXPECT_EQ(status.code(), Code::k_crashed) << status.text();
  EXPECT_LT(runs, 10);
  turn("");
  EXPECT_TRUE(run(**other, 100).ok());
}

TEST_F(RunWorkerFaults, ALostDeviceStaysLost) {
  const auto host = open(worker_options({"switched_run"}));
  const auto made = make_relu(*host->devices()[0], 8);
  ASSERT_TRUE(made.ok());
  turn("lost");
  EXPECT_EQ(run(**made, 8).code(), Code::k_device_lost);
  turn("");
  EXPECT_EQ(make_relu(*host->devices()[0], 9).status().code(), Code::k_device_lost);
}

TEST_F(RunWorkerFaults, WhatAPluginDoesToItsInputsOrItsThreadStaysThere) {
  const auto host = open(worker_options({"switched_run"}));
  const auto made = make_relu(*host->devices()[0], 8);
  ASSERT_TRUE(made.ok());
  for (const char* word : {"inputs", "rude"}) {
    turn(word);
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(run(**made, 8).ok()) << word;  // run() looks at the inputs, the fixture at the thread
  }
}

TEST_F(RunWorkerFaults, ACrashWhileAnArtifactIsLoadedCostsTheAttempt) {
  const auto host = open(worker_options({"crash_load"}));
  const auto made = make_relu(*host->devices()[0], 8);
  EXPECT_EQ(made.status().code(), Code::k_crashed) << made.status().text();
  EXPECT_TRUE(has(made.status().text(), "crashed in load (signal 11")) << made.status().text();
  const auto again = make_relu(*host->devices()[0], 8);
  EXPECT_TRUE(has(again.status().text(), "quarantined")) << again.status().text();
}

TEST_F(RunWorkerFaults, ThreeRegionsAreThePluginAndNoWorkerIsStartedForIt) {
  const auto host = open(worker_options({"switched_run"}));
  std::vector<std::shared_ptr<Executable>> made;
  for (const int64_t n : {8, 9, 10, 11}) made.push_back(*make_relu(*host->devices()[0], n));
  turn("crash");
  for (const int i : {0, 1, 2}) EXPECT_EQ(run(*made[i], 8 + i).code(), Code::k_crashed);
  turn("");
  const Status fourth = run(*made[3], 11);
  EXPECT_TRUE(has(fourth.text(), "failed on 3 regions")) << fourth.text();
  EXPECT_TRUE(workers("run").empty());
}

TEST_F(RunWorkerFaults, AWorkerThatSomebodyKilledAccusesNobodyForGood) {
  const auto host = open(worker_options({"good"}));
  const auto first = make_relu(*host->devices()[0], 8), second = make_relu(*host->devices()[0], 9);
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_EQ(workers("run").size(), 1u);
  ::kill(workers("run")[0], SIGKILL);
  const Status status = run(**first, 8);
  EXPECT_EQ(status.code(), Code::k_exhausted) << status.text();
  EXPECT_TRUE(run(**second, 9).ok()) << "in a fresh worker";
  EXPECT_TRUE(read_bad_records(*cache_).empty());
  std::this_thread::sleep_for(milliseconds(1100));
  EXPECT_TRUE(run(**first, 8).ok()) << "after a rest";
}

// However many regions it hits, and however often.
TEST_F(RunWorkerFaults, KilledWorkersCostNoPluginItsPlace) {
  const auto host = open(worker_options({"good"}));
  std::vector<std::shared_ptr<Executable>> made;
  for (int64_t n = 8; n < 18; ++n) {
    auto one = make_relu(*host->devices()[0], n);
    ASSERT_TRUE(one.ok()) << one.status().text();
    made.push_back(*one);
  }
  for (int64_t n = 8; n < 18; ++n) {
    const auto& executable = made[static_cast<size_t>(n - 8)];
    ASSERT_TRUE(run(*executable, n).ok());
    ASSERT_EQ(workers("run").size(), 1u);
    ::kill(workers("run")[0], SIGKILL);
    EXPECT_EQ(run(*executable, n).code(), Code::k_exhausted);
  }
  std::this_thread::sleep_for(milliseconds(1100));
  for (int64_t n = 8; n < 18; ++n) EXPECT_TRUE(run(*made[static_cast<size_t>(n - 8)], n).ok()) << n;
  EXPECT_TRUE(make_relu(*host->devices()[0], 30).ok());
}

TEST_F(RunWorkerFaults, WeightsAreTakenAlongIntoTheNextWorker) {
  const auto host = open(worker_options({"switched_run"}));
  const RegionBytes region = linear_region(2, 3, 4);
  const TensorRef w = test::tensor_of(DType::k_f32, {4, 3}, std::vector<float>{1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1});
  const TensorRef b = test::tensor_of(DType::k_f32, {4}, std::vector<float>{0, 10, 20, 30});
  auto linear = host->devices()[0]->compile({region.bytes, region.hash, {w, b}}, {}, {});
  ASSERT_TRUE(linear.ok()) << linear.status().text();
  const auto right = [&] {
    const TensorRef x = test::tensor_of(DType::k_f32, {2, 3}, std::vector<float>{1, 2, 3, 4, 5, 6});
    const TensorRef y = test::tensor_of(DType::k_f32, {2, 4}, std::vector<float>(8, kUntouched));
    const krn_tensor inputs[] = {view_of(*x, KRN_TENSOR_READ_ONLY), view_of(*w, KRN_TENSOR_READ_ONLY), view_of(*b, KRN_TENSOR_READ_ONLY)};
    const krn_tensor output = view_of(*y);
    const Status status = (*linear)->run(inputs, 3, &output, 1, nullptr, 0);
    EXPECT_TRUE(status.ok()) << status.text();
    const std::vector<float> want{1, 12, 23, 36, 4, 15, 26, 45};
    return std::equal(want.begin(), want.end(), static_cast<const float*>(y->data()));
  };
  EXPECT_TRUE(right());
  const auto other = make_relu(*host->devices()[0], 8);
  turn("crash");
  EXPECT_FALSE(run(**other, 8).ok());
  turn("");
  EXPECT_TRUE(right());
}

TEST_F(RunWorkerFaults, APluginWithoutArtifactsCompilesInTheWorker) {
  const auto host = open(worker_options({"no_artifact"}));
  const auto made = make_relu(*host->devices()[0], 8);
  ASSERT_TRUE(made.ok()) << made.status().text();
  EXPECT_TRUE(run(**made, 8).ok());
  EXPECT_FALSE(host->devices()[0]->save(**made).ok());
  const std::vector<std::string> told = host->take_incidents();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_TRUE(has(told[0], "compiles in its worker")) << told[0];
}

TEST_F(RunWorkerFaults, AnArtifactOfTheWorkersIsAnArtifact) {
  const auto host = open(worker_options({"good"}));
  const auto made = make_relu(*host->devices()[0], 8);
  ASSERT_TRUE(made.ok());
  const auto artifact = host->devices()[0]->save(**made);
  ASSERT_TRUE(artifact.ok()) << artifact.status().text();
  const RegionBytes region = relu_region(8);
  const auto loaded = host->devices()[0]->load({region.bytes, region.hash, {}}, *artifact);
  ASSERT_TRUE(loaded.ok()) << loaded.status().text();
  EXPECT_TRUE(run(**loaded, 8).ok());
}

TEST_F(RunWorkerFaults, WhereNoWorkerCanBeStartedNothingRunsHereInstead) {
  { (void)open(worker_options({"good"})); }  // the verdict is remembered, so the probe needs no child
  HostOptions o = worker_options({"good"});
  o.worker = "/nowhere/keirin-worker";
  const auto host = open(o);
  ASSERT_EQ(host->devices().size(), 1u);
  const auto made = make_relu(*host->devices()[0], 8);
  EXPECT_EQ(made.status().code(), Code::k_unsupported) << made.status().text();
  EXPECT_TRUE(has(made.status().text(), "cannot be started")) << made.status().text();
}

TEST_F(RunWorkerFaults, ThreadsShareTheWorkerWhileRegionsCrash) {
  const auto host = open(worker_options({"switched_run"}));
  const auto good = make_relu(*host->devices()[0], 64), bad = make_relu(*host->devices()[0], 8);
  ASSERT_TRUE(good.ok() && bad.ok());
  std::atomic<int> crashed{0}, failed{0};
  turn("crash");  // whoever runs first takes the worker down; then nothing crashes any more
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      if (t == 0) {
        crashed += run(**bad, 8).code() == Code::k_crashed;
        turn("");
      }
      while (crashed == 0) std::this_thread::yield();
      for (int i = 0; i < 50; ++i) failed += !run(**good, 64).ok();
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(crashed, 1);
  EXPECT_EQ(failed, 0);
}

// One process runs one region at a time. Where calls wait for each other long enough, there is a second one, and they no longer do; what
// it dies of is as exactly known as before, and costs the same.
TEST_F(RunWorkerFaults, CallsThatWaitForEachOtherGetAnotherProcess) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "one processor has one process";
  const auto host = open(worker_options({"switched_run"}));
  const auto made = make_relu(*host->devices()[0], 64), bad = make_relu(*host->devices()[0], 8);
  ASSERT_TRUE(made.ok() && bad.ok());
  const auto seconds_for = [&](int runs) {
    std::atomic<int> failed{0};
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < runs; ++i) failed += !run(**made, 64).ok();
      });
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(failed, 0);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(run(**made, 64).ok());
  EXPECT_EQ(workers("run").size(), 1u) << "nobody waited";
  turn("nap");  // 10 ms a run, of which one process does not do 160 in less than 1.6 s
  seconds_for(15);
  EXPECT_GT(workers("run").size(), 1u);
  const double apart = seconds_for(40);
  std::printf("160 runs of 10 ms by 4 threads: %.2f s\n", apart);
  EXPECT_LT(apart, 1.3);
  turn("crash");
  EXPECT_EQ(run(**bad, 8).code(), Code::k_crashed);
  turn("");
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(run(**made, 64).ok()) << "in whichever process";
  EXPECT_EQ(host->take_incidents().size(), 1u);
}

// All of them die of one region at once: it is said once, and nobody waits for ever.
TEST_F(RunWorkerFaults, OneRegionThatTakesAllProcessesDownIsNamedOnce) {
  const auto host = open(worker_options({"switched_run"}));
  const auto made = make_relu(*host->devices()[0], 64), other = make_relu(*host->devices()[0], 8);
  ASSERT_TRUE(made.ok() && other.ok());
  std::atomic<int> crashed{0}, wrong{0};
  turn("nap");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200 && crashed < 4; ++i) {
        const Status status = run(**made, 64);
        crashed += status.code() == Code::k_crashed;
        wrong += !status.ok() && status.code() != Code::k_crashed;
        if (t == 0 && i == 20) turn("crash");
        if (!status.ok()) return;
      }
    });
  for (std::thread& t : threads) t.join();
  turn("");
  EXPECT_EQ(crashed, 4);
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(host->take_incidents().size(), 1u);
  EXPECT_TRUE(run(**other, 8).ok());
}

TEST_F(RunWorkerFaults, AForkedCopyIsRefusedAndLeavesTheWorkerAlone) {
  const auto host = open(worker_options({"good"}));
  const auto made = make_relu(*host->devices()[0], 8);
  ASSERT_TRUE(made.ok());
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(run(**made, 8).ok() ? 3 : testing::Test::HasFailure() ? 4 : 0);
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(run(**made, 8).ok());
}

}  // namespace
}  // namespace keirin
