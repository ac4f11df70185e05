// SPDX-License-Identifier: Apache-2.0
//
// What runs side by side in a service: calls, compiles, cancelling, closing, the cache, the quarantine, the guards. Each scenario
// goes on for KEIRIN_THREADS_SECONDS (a third of a second unless told) and asks for right answers; ci/threads runs the same
// program under the thread sanitizer. LibTorch is not instrumented, so tensors are on the heap and threads the standard library's.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <thread>

#include "core/api/guard.h"
#include "core/api/plan_table.h"
#include "core/base/background.h"
#include "core/cache/bad_records.h"
#include "core/exec/plan.h"
#include "core/host/call/tensor_view.h"
#include "core/host/guard/journal.h"
#include "core/ir/bytes.h"
#include "tests/support/relu_region.h"
#include "tests/support/temp_folder.h"
#include "tests/support/trust_count.h"
#include "tests/unit/host/heap_services.h"

namespace keirin {
namespace {

using test::relu_region;

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

Clock::duration scenario_time() {
  const char* const seconds = ::getenv("KEIRIN_THREADS_SECONDS");
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds ? ::atof(seconds) : 0.33));
}

// A thread for each of the jobs; all start at once.
void side_by_side(const std::vector<std::function<void()>>& jobs) {
  std::barrier start(static_cast<std::ptrdiff_t>(jobs.size()));
  std::vector<std::thread> threads;
  for (const auto& job : jobs)
    threads.emplace_back([&] {
      start.arrive_and_wait();
      job();
    });
  for (std::thread& t : threads) t.join();
}

// The same, each job over and over until the scenario's time is over; at least once.
void over_and_over(std::vector<std::function<void()>> jobs) {
  const Clock::time_point end = Clock::now() + scenario_time();
  for (auto& job : jobs)
    job = [job = std::move(job), end] {
      do job();
      while (Clock::now() < end);
    };
  side_by_side(jobs);
}

template <class Job>
std::vector<std::function<void()>> times(int n, Job job) {
  return std::vector<std::function<void()>>(static_cast<size_t>(n), job);
}
std::vector<std::function<void()>> operator+(std::vector<std::function<void()>> a, const std::vector<std::function<void()>>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Result<std::shared_ptr<Executable>> compile_relu(PluginDevice& device, int64_t n, const CompileOptions& options = {}) {
  const RegionBytes region = relu_region(n);
  const PluginRegion view{region.bytes, region.hash, {}};
  KRN_TRY_LET(const ClaimResult claims, device.claim(view, {}));
  if (claims.claims.size() != 1) return Status(Code::k_internal, "not claimed");
  return device.compile(view, {}, options);
}

bool runs_right(Executable& executable, int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) values[static_cast<size_t>(i)] = static_cast<float>(i % 7 - 3);
  const TensorRef in = test::tensor_of(DType::k_f32, {n}, values),
                  out = test::tensor_of(DType::k_f32, {n}, std::vector<float>(values.size(), -1));
  const krn_tensor input = view_of(*in, KRN_TENSOR_READ_ONLY), output = view_of(*out);
  if (!executable.run(&input, 1, &output, 1, nullptr, 0).ok()) return false;
  for (int64_t i = 0; i < n; ++i)
    if (static_cast<const float*>(out->data())[i] != std::max(0.0f, values[static_cast<size_t>(i)])) return false;
  return true;
}

class Threads : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(wrong_, 0);
    std::printf("%lld rounds\n", static_cast<long long>(done_));
    EXPECT_GT(done_, 0);
    test::trust_count("threads", 1, HasFailure() ? 1 : 0);
  }

  HostOptions options(const std::vector<std::string>& faults, CompileIn where) {
    HostOptions o;
    for (const std::string& fault : faults) o.paths.push_back(std::string(KEIRIN_FAULTS_DIR) + "/" + fault);
    o.search = false;
    o.cache_dir = cache_.dir();
    o.worker = KEIRIN_WORKER;
    static auto* const services = new test::HeapServices;  // outlives every host of the process
    o.services = services;
    o.quarantine = open_quarantine(&cache_);
    o.compile_in = where;
    return o;
  }
  std::unique_ptr<PluginHost> open(const HostOptions& o) {
    auto host = PluginHost::open(o);
    EXPECT_TRUE(host.ok()) << host.status().text();
    return std::move(*host);
  }
  static PluginDevice& device_of(PluginHost& host, const std::string& plugin) {
    for (PluginDevice* d : host.devices())
      if (d->plugin_name() == plugin) return *d;
    ADD_FAILURE() << plugin << " was not taken";
    ::abort();
  }
  void note(bool right) { ++done_, wrong_ += !right; }

  test::TempFolder folder_;
  Cache cache_{[this] {
    CacheOptions o;
    o.dir = folder_.path() + "/cache";
    o.max_bytes = 20000;
    return o;
  }()};
  std::atomic<int64_t> done_{0}, wrong_{0};
};

TEST_F(Threads, TheFirstCallComesFromSixteenThreads) {
  const auto host = open(options({"good"}, CompileIn::kProcess));
  const Clock::time_point end = Clock::now() + scenario_time();
  for (int64_t n = 100; n == 100 || Clock::now() < end; ++n) {
    const auto executable = compile_relu(device_of(*host, "good"), n);
    ASSERT_TRUE(executable.ok()) << executable.status().text();
    side_by_side(times(16, [&] { note(runs_right(**executable, n)); }));
  }
}

TEST_F(Threads, CompilingInTheChildAndHereBesideCalls) {
  const auto here = open(options({"good"}, CompileIn::kProcess)), child = open(options({"good"}, CompileIn::kChild));
  const auto running = *compile_relu(device_of(*here, "good"), 64);
  std::atomic<int64_t> n{100};
  const auto compiling = [&](PluginHost& host) {
    const int64_t size = n++;
    const auto made = compile_relu(device_of(host, "good"), size);
    note(made.ok() && runs_right(**made, size));
  };
  over_and_over(times(2, [&] { note(runs_right(*running, 64)); }) + times(2, [&] { compiling(*child); }) +
                times(1, [&] { compiling(*here); }));
}

TEST_F(Threads, CancellingAHangingCompile) {
  HostOptions o = options({"hang_compile", "good"}, CompileIn::kChild);
  o.compile_deadline = milliseconds(60000);
  const auto host = open(o);
  const auto good = *compile_relu(device_of(*host, "good"), 64);
  int64_t n = 8;
  over_and_over({[&] { note(runs_right(*good, 64)); },
                 [&] {
                   std::atomic<bool> cancel{false};
                   CompileOptions options;
                   options.cancel = &cancel;
                   const RegionBytes region = relu_region(++n);
                   std::thread later([&] { cancel = true; });
                   const auto made = device_of(*host, "hang_compile").compile({region.bytes, region.hash, {}}, {}, options);
                   later.join();
                   note(made.status().code() == Code::k_cancelled);
                 }});
  EXPECT_TRUE(read_bad_records(cache_).empty()) << "cancelling accuses nobody";
}

TEST_F(Threads, ClosingAHostDuringItsCompile) {
  const auto other = open(options({"good"}, CompileIn::kProcess));
  const auto running = *compile_relu(device_of(*other, "good"), 64);
  std::atomic<int64_t> n{100};
  over_and_over({[&] { note(runs_right(*running, 64)); },
                 [&] {
                   HostOptions o = options({"good", "hang_compile"}, CompileIn::kChild);
                   auto host = open(o);
                   std::atomic<bool> cancel{false};
                   CompileOptions options;
                   options.cancel = &cancel;
                   Code code = Code::k_ok;
                   bool good = false;
                   std::thread hanging([&] { code = compile_relu(device_of(*host, "hang_compile"), n++, options).status().code(); });
                   std::thread working([&] { good = compile_relu(device_of(*host, "good"), n++).ok(); });
                   working.join();
                   cancel = true;
                   hanging.join();
                   host.reset();
                   note(good && code == Code::k_cancelled);
                 }});
}

TEST_F(Threads, ADyingChildThatManyAsk) {
  const auto host = open(options({"crash_compile", "good"}, CompileIn::kChild));
  std::atomic<int64_t> n{100};
  over_and_over(times(4, [&] {
                  const auto made = compile_relu(device_of(*host, "crash_compile"), n++);
                  note(made.status().code() == Code::k_crashed);  // crashed now, or is in quarantine
                }) +
                times(2, [&] { note(compile_relu(device_of(*host, "good"), n++).ok()); }));
  EXPECT_GE(read_bad_records(cache_).size(), kBadRegionsOfABadPlugin);
}

TEST_F(Threads, RunsInAWorkerBesideCompilesThatComeAndGo) {
  HostOptions o = options({"good"}, CompileIn::kChild);
  o.run_in = RunIn::kWorker;
  const auto host = open(o);
  const auto first = *compile_relu(device_of(*host, "good"), 64), second = *compile_relu(device_of(*host, "good"), 65);
  std::atomic<int64_t> n{100};
  over_and_over(times(2, [&] { note(runs_right(*first, 64)); }) + times(2, [&] { note(runs_right(*second, 65)); }) + times(2, [&] {
                  const int64_t mine = n++;
                  const auto made = compile_relu(device_of(*host, "good"), mine);
                  note(made.ok() && runs_right(**made, mine));
                }));
}

TEST_F(Threads, SweepAndCheckBesideReadersAndWriters) {
  constexpr int kKeys = 12;
  const auto key = [](int i) { return CacheKey().add("n", i); };
  std::atomic<int> next{0};
  const auto write = [&] {
    const int i = next++;
    note(cache_.publish(EntryKind::kArtifact, key(i % kKeys),
                        std::string(static_cast<size_t>(1000 + i % 3000), static_cast<char>('a' + i % 26))));
  };
  const auto read = [&] {
    const auto body = cache_.read(EntryKind::kArtifact, key(next % kKeys));
    note(!body || body->find_first_not_of(body->front()) == std::string::npos);
  };
  over_and_over(times(2, write) + times(3, read) + times(1, [&] { cache_.sweep(); }) + times(1, [&] { note(cache_.check().empty()); }) +
                times(1, [&] { (void)cache_.lock("key", milliseconds(1)); }));
}

TEST_F(Threads, QuarantineInTheMiddleOfRuns) {
  const auto host = open(options({"good"}, CompileIn::kChild));
  PluginDevice& device = device_of(*host, "good");
  const auto running = *compile_relu(device, 64);
  const Hash bad = relu_region(65).hash;
  std::atomic<bool> told{false};
  over_and_over({[&] { note(runs_right(*running, 64)); }, [&] { note(runs_right(*running, 64)); },
                 [&] {
                   device.quarantine(bad, "answered wrong in service");
                   told = true;
                 },
                 [&] {
                   const bool before = told;
                   const auto made = compile_relu(device, 65);
                   note(made.ok() ? !before : made.status().code() == Code::k_crashed);
                 },
                 [&] { (void)host->take_incidents(); }});
  EXPECT_FALSE(compile_relu(device, 65).ok());
  EXPECT_TRUE(runs_right(*running, 64)) << "what runs already goes on";
}

TEST_F(Threads, RuntimesThatOpenAndCloseAtWill) {
  std::atomic<int64_t> n{100};
  over_and_over(times(3, [&] {
    const auto host = open(options({"good"}, CompileIn::kProcess));
    const int64_t size = n++;
    const auto made = compile_relu(device_of(*host, "good"), size);
    note(made.ok() && runs_right(**made, size));
  }));
}

TEST_F(Threads, CallbacksThatThrow) {
  HostOptions o = options({"rude_slice", "good"}, CompileIn::kProcess);
  std::atomic<int> told{0};
  o.log = [&](int, std::string_view) {
    ++told;
    throw std::runtime_error("from a callback");
  };
  const auto host = open(o);
  const auto rude = *compile_relu(device_of(*host, "rude_slice"), 64);
  CompileOptions options;
  options.dump = [](std::string_view) { throw std::runtime_error("from a callback"); };
  std::atomic<int64_t> n{100};
  over_and_over({[&] { note(runs_right(*rude, 64)); }, [&] { note(runs_right(*rude, 64)); },
                 [&] { note(compile_relu(device_of(*host, "good"), n++, options).ok()); },
                 [&] {  // is told that it left threads changed, and after the third time refused
                   const auto made = compile_relu(device_of(*host, "rude_slice"), n++, options);
                   note(made.ok() || made.status().code() == Code::k_wrong_result);
                 }});
  EXPECT_GT(told, 0);
}

TEST_F(Threads, ABreakerThatManyUse) {
  CircuitBreaker breaker;
  std::atomic<int> trials{0};
  const CircuitBreaker::Time start{};
  std::atomic<int> second{0};
  over_and_over(times(3, [&] {
                  const auto now = start + std::chrono::seconds(second++);
                  if (!breaker.admits(now)) return;
                  ++trials;
                  (void)breaker.failed(now);
                  note(true);
                }) +
                times(2, [&] {
                  if (breaker.admits(start + std::chrono::seconds(second++))) breaker.succeeded();
                  note(true);
                }));
  CircuitBreaker fresh;
  std::atomic<int> opened{0};
  side_by_side(times(8, [&] { opened += fresh.failed(start); }));
  EXPECT_EQ(opened, 1) << "one failure of eight opens it";
  EXPECT_FALSE(fresh.admits(start));
  std::atomic<int> admitted{0};
  side_by_side(times(8, [&] { admitted += fresh.admits(start + CircuitBreaker::kFirstWait); }));
  EXPECT_EQ(admitted, 1) << "half-open lets one call through";
}

TEST_F(Threads, ChecksAfterTheReply) {
  test::HeapServices services;
  std::atomic<int> revoked{0}, checked{0};
  const Clock::time_point end = Clock::now() + scenario_time();
  do {
    auto guard = std::make_shared<PlanGuard>();
    guard->sample_rate = 2;
    guard->check = [&](const auto&, const auto& outputs) {
      ++checked;
      return *static_cast<const float*>(outputs[0]->data()) < 0 ? std::string("wrong") : std::string();
    };
    guard->revoke = [&](const std::string&) { ++revoked; };
    CallChecker checker;
    std::atomic<int> calls{0};
    side_by_side(times(4, [&] {
                   for (int i = 0; i < 50; ++i) {
                     const TensorRef x = test::tensor_of<float>(DType::k_f32, {1}, {calls++ == 120 ? -1.0f : 1.0f});
                     if (guard->takes_sample()) checker.submit(guard, {x}, {x}, services);
                     static_cast<float*>(x->data())[0] = 1;  // the answer is the caller's
                     note(true);
                   }
                 }) +
                 times(1, [&] { checker.drain(); }));
    EXPECT_LE(revoked.exchange(0), 1);
  } while (Clock::now() < end);  // the checker ends with samples waiting
  EXPECT_GT(checked, 0);
}

TEST_F(Threads, PlansArePublishedWhileCallsTakeThem) {
  struct Entry {
    int64_t a, b;
  };
  PlanTable<Entry> table;
  std::atomic<int64_t> n{0};
  over_and_over(times(4, [&] {
                  const auto list = table.now();
                  bool right = list->size() <= 8;
                  for (const auto& entry : *list) right &= entry->a == -entry->b;
                  note(right);
                }) +
                times(2, [&] {
                  table.change([&](auto& list) {
                    const int64_t k = n++;
                    if (list.size() == 8) list.erase(list.begin());
                    list.push_back(std::make_shared<Entry>(Entry{k, -k}));
                  });
                }));
}

TEST_F(Threads, APlanWithEagerStepsRunByMany) {
  constexpr int64_t kSize = 256;
  const auto host = open(options({"good"}, CompileIn::kProcess));
  test::HeapServices services;
  Graph g;
  const Type type{DType::k_f32, {kSize}, {1}};
  const ValueId x = g.add_input(type, 0);
  const ValueId negated = g.ops[g.add_op(OpCode::k_neg, {x}, {}, {type})].results[0];
  const ValueId out = g.ops[g.add_op(OpCode::k_relu, {negated}, {}, {type})].results[0];
  g.outputs.push_back({out, kNone, kNone});
  std::vector<PlanStep> steps(2);
  steps[0].name = "neg";
  steps[0].may_alias = false;
  steps[0].operands = {x};
  steps[0].results = {negated};
  steps[0].eager = [&](std::span<const TensorRef> operands, std::vector<TensorRef>& results) -> Status {
    KRN_TRY_LET(TensorRef made, services.clone(operands[0]));
    for (int64_t i = 0; i < kSize; ++i) static_cast<float*>(made->data())[i] *= -1;
    results = {made};
    return {};
  };
  steps[1].name = "r0";
  steps[1].operands = {negated};
  steps[1].results = {out};
  steps[1].executable = *compile_relu(device_of(*host, "good"), kSize);
  auto plan = Plan::make(g, std::move(steps), {}, services, {});
  ASSERT_TRUE(plan.ok()) << plan.status().text();
  std::atomic<int> next{0};
  over_and_over(times(6, [&] {
                  const auto value = static_cast<float>(next++ % 100 - 50);
                  const auto outputs = (*plan)->run({test::tensor_of(DType::k_f32, {kSize}, std::vector<float>(kSize, value))});
                  bool right = outputs.ok();
                  for (int64_t i = 0; right && i < kSize; ++i)
                    right = static_cast<const float*>((*outputs)[0]->data())[i] == std::max(0.0f, -value);
                  note(right);
                }) +
                times(1, [&] { (*plan)->trim(); }));
}

TEST_F(Threads, TheJournalIsWrittenWhileOthersCollect) {
  const std::string dir = folder_.path() + "/journal";
  std::atomic<uint8_t> n{0};
  over_and_over(times(4, [&] {
                  const auto journal = Journal::open(dir);
                  Hash region{};
                  region[0] = n++;
                  const Journal::Entry entry(journal, "acme", "guid", "1", "krn.exec.run", region);
                  note(journal != nullptr);
                }) +
                times(1, [&] { note(Journal::collect(dir).empty()); }));
}

TEST_F(Threads, BackgroundWorkBesideCalls) {
  const auto host = open(options({"good"}, CompileIn::kProcess));
  const auto running = *compile_relu(device_of(*host, "good"), 64);
  int64_t n = 100;
  over_and_over({[&] { note(runs_right(*running, 64)); },
                 [&] { note(in_background([&] { return compile_relu(device_of(*host, "good"), n++); }).ok()); }});
}

}  // namespace
}  // namespace keirin
