// SPDX-License-Identifier: Apache-2.0
//
// A bad plugin beside a whole session: whatever it does while a decision is made or while calls are served, every call is answered
// right, the report names it, and the next start does not try it again.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "core/api/guard.h"
#include "core/api/repro.h"
#include "core/api/session.h"
#include "core/cache/cache.h"
#include "core/host/call/host_tables.h"
#include "core/host/plugins.h"
#include "tests/support/others.h"
#include "tests/support/temp_folder.h"
#include "tests/support/world.h"

namespace keirin {
namespace {

namespace fs = std::filesystem;

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class ServiceFaults : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("KEIRIN_FAULT_SWITCH", switch_.c_str(), 1);
  }

  // The fixture's own checks, after whatever a test injected.
  void TearDown() override {
    ::unsetenv("KEIRIN_FAULT_SWITCH");
    for (const std::string& change : world_.changes()) ADD_FAILURE() << change;
    CacheOptions cache;
    cache.dir = dir_ + "/cache";
    for (const EntryInfo& dropped : Cache(cache).check()) ADD_FAILURE() << "the cache held a bad entry: " << dropped.problem;
  }

  Options options(const std::string& fault) {
    Options o;
    o.cache_dir = dir_ + "/cache";
    o.plugin_paths = {std::string(KEIRIN_FAULTS_DIR) + "/" + fault};
    o.plugins = {fault};
    o.compile_deadline_seconds = 1;
    o.race_seconds = 1;
    o.interference = &nobody_;
    return o;
  }
  void turn(const std::string& word) {
    std::ofstream(switch_ + ".new") << word;
    fs::rename(switch_ + ".new", switch_);
  }

  struct Service {
    std::unique_ptr<Runtime> runtime;
    std::unique_ptr<Session> session;
    std::vector<TensorRef> inputs, expected;
  };
  static constexpr const char* kMlp = "bench/zoo/models/small/mlp.pt2";
  static constexpr const char* kFreeBatch = "tests/data/import/mlp.pt2";
  // A call of so many rows, and all that it brings about.
  static bool call_is_right(const Service& s, int64_t batch) {
    const std::vector<TensorRef> inputs = *s.session->example_inputs(1, {batch});
    const auto expected = s.session->call_eager(inputs), outputs = s.session->call(inputs);
    return s.session->settle(std::chrono::seconds(120)) && outputs.ok() && expected.ok() && right(*outputs, *expected);
  }
  Service serve(const Options& o, const std::string& model = kMlp) {
    Service s;
    auto runtime = Runtime::open(o);
    EXPECT_TRUE(runtime.ok()) << runtime.status().text();
    s.runtime = std::move(*runtime);
    auto session = Session::open(*s.runtime, std::string(KEIRIN_SOURCE_DIR) + "/" + model, o);
    EXPECT_TRUE(session.ok()) << session.status().text();
    s.session = std::move(*session);
    s.inputs = *s.session->example_inputs(1);
    s.expected = *s.session->call_eager(s.inputs);
    return s;
  }
  // Decides beside calls of sizes that change, and has to take this plan of the plugin's: a race might cut the sizes where another wins.
  Service serve_sizes(const std::string& plugin) {
    Options o = options(plugin);
    o.compile = When::kBackground;
    o.only_candidate = plugin + "/all";
    return serve(o, kFreeBatch);
  }

  // What is decided with that plugin alone and forced; calls are then answered right.
  ModelReport decide_for(const std::string& fault, const std::string& model = kMlp, bool leave_one_out = false) {
    Options o = options(fault);
    o.force = "compiled";
    o.threads = 1;
    o.leave_one_out = leave_one_out;
    Service s = serve(o, model);
    const auto report = s.session->compile(s.inputs);
    EXPECT_TRUE(report.ok()) << report.status().text();
    const auto outputs = s.session->call(s.inputs);
    EXPECT_TRUE(outputs.ok() && right(*outputs, s.expected));
    return report.ok() ? *report : ModelReport();
  }

  // Its products round more than this allows.
  Options rounding_options() {
    Options o = options("coarse_linear");
    o.force = "compiled";
    o.threads = 1;
    o.numerics = Numerics::kFast;
    o.error_budget = 1e-4;
    return o;
  }

  static bool right(const std::vector<TensorRef>& outputs, const std::vector<TensorRef>& expected) {
    if (outputs.size() != expected.size()) return false;
    const TensorRef &a = outputs[0], &b = expected[0];
    if (a->storage_bytes() != b->storage_bytes()) return false;
    const auto *x = static_cast<const float*>(a->data()), *y = static_cast<const float*>(b->data());
    for (int64_t i = 0; i < a->storage_bytes() / 4; ++i)
      if (!(std::fabs(x[i] - y[i]) < 1e-4f)) return false;
    return true;
  }

  test::Others nobody_;  // what is asked is who answers, not how fast
  const test::World world_{test::World::Count::kNoThreads};
  test::TempFolder folder_;
  const std::string dir_ = folder_.path();
  const std::string switch_ = dir_ + "/switch";
};

class DyingCompiler : public ServiceFaults, public testing::WithParamInterface<const char*> {};

TEST_P(DyingCompiler, CostsAReasonAndNoCall) {
  const std::string fault = GetParam();
  for (const bool again : {false, true}) {
    SCOPED_TRACE(again ? "the next start" : "the first start");
    Options o = options(fault);
    o.measure_again = again;  // else the ledger's answer would do
    Service s = serve(o);
    std::atomic<bool> stop{false};
    std::atomic<int> calls{0}, failures{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t)
      threads.emplace_back([&] {
        while (!stop) {
          auto outputs = s.session->call(s.inputs);
          if (!outputs.ok() || !right(*outputs, s.expected)) ++failures;
          ++calls;
        }
      });
    const auto report = s.session->compile(s.inputs);
    while (calls < 16) std::this_thread::yield();  // a decision can be quicker than a thread's start
    stop = true;
    for (std::thread& t : threads) t.join();
    ASSERT_TRUE(report.ok()) << report.status().text();
    EXPECT_EQ(failures, 0);
    EXPECT_TRUE(report->verified);
    const std::string text = explain_text(*report);
    EXPECT_TRUE(has(text, fault)) << text;
    EXPECT_TRUE(has(text, again ? "quarantined" : fault == "hang_compile" ? "hung in compile" : "crashed in c")) << text;
    int named = 0;
    for (const std::string& reason : report->reasons) {
      std::printf("%s, %s: %s\n", fault.c_str(), again ? "again" : "first", reason.c_str());
      named += has(reason, "is not tried again");
    }
    EXPECT_EQ(named, again ? 0 : 1) << "it is reported once";
  }
}

INSTANTIATE_TEST_SUITE_P(All, DyingCompiler, testing::Values("crash_compile", "hang_compile", "crash_claim"),
                         [](const auto& info) { return std::string(info.param); });

class WrongPlan : public ServiceFaults, public testing::WithParamInterface<const char*> {};

TEST_P(WrongPlan, IsRevokedAndNotBuiltAgain) {
  Options o = options("switched_run");
  o.run_in = GetParam();
  o.force = "compiled";
  o.sample_rate = 10;
  {
    Service s = serve(o);
    const auto report = s.session->compile(s.inputs);
    ASSERT_TRUE(report.ok()) << report.status().text();
    ASSERT_TRUE(has(report->chosen, "switched_run")) << explain_text(*report);
    const std::string revoked = "revoked: " + report->chosen;
    for (int i = 0; i < 25; ++i) ASSERT_TRUE(right(*s.session->call(s.inputs), s.expected));
    EXPECT_FALSE(has(explain_text(s.session->reports().back()), "revoked"));
    turn("wrong");
    int wrong = 0;
    for (int i = 0; i < 25; ++i) wrong += !right(*s.session->call(s.inputs), s.expected);
    const std::string text = explain_text(s.session->reports().back());  // waits for the checks
    std::printf("%d wrong answers before the check; then: %s\n", wrong, s.session->reports().back().reasons.back().c_str());
    EXPECT_GT(wrong, 0) << "the fault was not injected";
    EXPECT_TRUE(has(text, revoked + " answered wrong in service")) << text;
    EXPECT_EQ(text.find("revoked"), text.rfind("revoked")) << "said once";
    for (int i = 0; i < 25; ++i) EXPECT_TRUE(right(*s.session->call(s.inputs), s.expected)) << "eager answers now";
  }
  fs::remove(switch_);
  Service s = serve(o);
  const auto report = s.session->compile(s.inputs);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(has(explain_text(*report), "quarantined: switched_run: answered wrong in service")) << explain_text(*report);
  EXPECT_FALSE(has(report->chosen, "switched_run"));
}

// Right in the judge's runs and in the race, right in the samples that every plan begins with, and then wrong in each tenth call only: a
// sample meets one before long, and the plan ends as one that is always wrong does.
TEST_P(WrongPlan, IsFoundThoughItIsRightMostOfTheTime) {
  Options o = options("switched_run");
  o.run_in = GetParam();
  o.force = "compiled";
  o.sample_rate = 10;
  std::mutex mutex;
  std::vector<Event> events;
  o.on_event = [&](const Event& event) {
    const std::lock_guard lock(mutex);
    events.push_back(event);
  };
  {
    Service s = serve(o);
    const auto report = s.session->compile(s.inputs);
    ASSERT_TRUE(report.ok()) << report.status().text();
    ASSERT_TRUE(has(report->chosen, "switched_run")) << explain_text(*report);
    for (int i = 0; i < 25; ++i) ASSERT_TRUE(right(*s.session->call(s.inputs), s.expected));
    turn("sometimes");
    int calls = 0, wrong = 0;
    const auto revoked = [&] { return has(explain_text(s.session->reports().back()), "revoked"); };  // waits for the checks
    while (calls < 5000 && !revoked()) {
      wrong += !right(*s.session->call(s.inputs), s.expected);
      ++calls;
    }
    const std::string text = explain_text(s.session->reports().back());
    std::printf("%d of %d answers were wrong before the check\n", wrong, calls);
    EXPECT_GT(wrong, 0) << "the fault was not injected";
    EXPECT_TRUE(has(text, "revoked: " + report->chosen + " answered wrong in service")) << text;
    for (int i = 0; i < 50; ++i) EXPECT_TRUE(right(*s.session->call(s.inputs), s.expected)) << "eager answers now";
    const std::lock_guard lock(mutex);
    const auto told = [](const Event& e) { return e.kind == Event::Kind::kChanged && has(e.text, "answered wrong in service"); };
    EXPECT_EQ(std::count_if(events.begin(), events.end(), told), 1);
  }
  fs::remove(switch_);
  Service s = serve(o);
  const auto report = s.session->compile(s.inputs);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(has(explain_text(*report), "quarantined: switched_run: answered wrong in service")) << explain_text(*report);
  EXPECT_FALSE(has(report->chosen, "switched_run"));
}

INSTANTIATE_TEST_SUITE_P(All, WrongPlan, testing::Values("process", "worker"), [](const auto& info) { return std::string(info.param); });

struct ServiceRunFault {
  const char* word;
  const char* told;
};

class DyingRun : public ServiceFaults, public testing::WithParamInterface<ServiceRunFault> {};

// In worker mode: the worker dies, eager answers, and the plan is not called again, now or after the next start.
TEST_P(DyingRun, IsAnsweredEagerly) {
  Options o = options("switched_run");
  o.force = "compiled";
  o.run_in = "worker";
  o.run_deadline_seconds = 1;
  {
    Service s = serve(o);
    const auto report = s.session->compile(s.inputs);
    ASSERT_TRUE(report.ok()) << report.status().text();
    ASSERT_TRUE(has(report->chosen, "switched_run")) << explain_text(*report);
    EXPECT_TRUE(has(explain_text(*report), "in the worker")) << explain_text(*report);
    turn(GetParam().word);
    std::atomic<int> failures{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < 10; ++i) {
          auto outputs = s.session->call(s.inputs);
          failures += !outputs.ok() || !right(*outputs, s.expected);
        }
      });
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(failures, 0);
    const std::string text = explain_text(s.session->reports().back());
    std::printf("%s: %s\n", GetParam().word, s.session->reports().back().reasons.back().c_str());
    EXPECT_TRUE(has(text, GetParam().told)) << text;
    EXPECT_EQ(text.find("revoked"), text.rfind("revoked")) << "said once";
  }
  turn("");
  Service s = serve(o);
  const auto report = s.session->compile(s.inputs);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(has(explain_text(*report), "quarantined")) << explain_text(*report);
  EXPECT_TRUE(right(*s.session->call(s.inputs), s.expected));
}

INSTANTIATE_TEST_SUITE_P(All, DyingRun,
                         testing::Values(ServiceRunFault{"crash", "revoked: a call of the plan failed: crashed in run (signal 11"},
                                         ServiceRunFault{"hang", "revoked: a call of the plan failed: hung in run (no end within 1000 ms)"},
                                         ServiceRunFault{"exit", "revoked: a call of the plan failed: ended the process in run"},
                                         ServiceRunFault{"overrun", "revoked: a call of the plan failed: wrote past the end of output 0"},
                                         ServiceRunFault{"babble", "revoked: a call of the plan failed: answered what is not a message"}),
                         [](const auto& info) { return std::string(info.param.word); });

// In this process nobody can end it: one caller is lost to it, those behind and after him are answered by eager.
TEST_F(ServiceFaults, AHangInThisProcessGetsNoMoreCalls) {
  Options o = options("switched_run");
  o.force = "compiled";
  o.run_deadline_seconds = 1;
  o.sample_rate = 0;
  const std::string told = "switched_run: hung in run (no end within 1000 ms); its region runs eagerly and is not tried again";
  {
    Service s = serve(o);
    const auto report = s.session->compile(s.inputs);
    ASSERT_TRUE(report.ok()) << report.status().text();
    ASSERT_TRUE(has(report->chosen, "switched_run")) << explain_text(*report);
    turn("stall");
    std::atomic<int> right_answers{0};
    const auto call = [&] {
      const auto outputs = s.session->call(s.inputs);
      right_answers += outputs.ok() && right(*outputs, s.expected);
    };
    std::thread lost(call);
    const auto named = [&] { return has(explain_text(s.session->reports().back()), told); };
    for (int i = 0; i < 200 && !named(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_TRUE(named()) << "while nobody else calls";
    std::vector<std::thread> others;
    for (int t = 0; t < 4; ++t) others.emplace_back(call);
    for (std::thread& t : others) t.join();
    EXPECT_EQ(right_answers, 4);
    const std::string text = explain_text(s.session->reports().back());
    EXPECT_TRUE(has(text, "revoked: a call of the plan failed: hung in run")) << text;
    EXPECT_EQ(text.find(told), text.rfind(told)) << "said once";
    turn("");  // it comes back after all, with the right answer
    lost.join();
    EXPECT_EQ(right_answers, 5);
  }
  Service s = serve(o);
  const auto report = s.session->compile(s.inputs);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(has(explain_text(*report), "quarantined: switched_run: hung in run")) << explain_text(*report);
}

// Those who wait for their turn when it begins to hang.
TEST_F(ServiceFaults, AHangLetsGoOfThoseWhoWait) {
  Options o = options("switched_run");
  o.force = "compiled";
  o.run_deadline_seconds = 1;
  o.use_cache = false;
  Service s = serve(o);
  ASSERT_TRUE(s.session->compile(s.inputs).ok());
  turn("stall");
  std::atomic<int> answered{0}, right_answers{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t)
    callers.emplace_back([&] {
      const auto outputs = s.session->call(s.inputs);
      right_answers += outputs.ok() && right(*outputs, s.expected);
      ++answered;
    });
  for (int i = 0; i < 200 && answered < 3; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(answered, 3) << "all but the one that hangs";
  turn("");
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(right_answers, 4);
}

TEST_F(ServiceFaults, AWrongAnswerIsKeptAndMadeSmall) {
  Options o = options("switched_run");
  o.use_cache = false;
  o.repro_dir = dir_ + "/repro";
  turn("wrong");
  Service s = serve(o);
  const auto report = s.session->compile(s.inputs);
  ASSERT_TRUE(report.ok()) << report.status().text();
  EXPECT_TRUE(has(explain_text(*report), "`keirin repro " + o.repro_dir)) << explain_text(*report);
  const auto kept = read_repro(o.repro_dir + "/mlp-switched_run-all", s.runtime->tensors());
  ASSERT_TRUE(kept.ok()) << kept.status().text();
  auto found = reproduce(*s.runtime, *kept, o);
  ASSERT_TRUE(found.ok()) << found.status().text();
  EXPECT_FALSE(found->reason.empty());
  std::printf("%zu ops of %zu: %s\n%s\n", found->smallest.ops.size(), kept->graph.ops.size(), found->smallest_reason.c_str(),
              found->blame.c_str());
  EXPECT_EQ(found->smallest.ops.size(), 1u) << "whatever it computes is wrong";
  EXPECT_EQ(found->blame, "plugin switched_run: it is wrong with every pass off, too");
  turn("");
  found = reproduce(*s.runtime, *kept, o);
  ASSERT_TRUE(found.ok()) << found.status().text();
  EXPECT_EQ(found->reason, "") << "right now";
  fs::remove(o.repro_dir + "/mlp-switched_run-all/inputs.safetensors");
  EXPECT_FALSE(read_repro(o.repro_dir + "/mlp-switched_run-all", s.runtime->tensors()).ok());
}

// Candidates that answer wrong stand before those of a good plugin and take no part in the race: what is called afterwards is the row
// that the race decided for, not whatever stands at its number. On a noisy machine nobody may win; then it is tried again.
TEST_F(ServiceFaults, WhatIsChosenIsWhatWonWhoeverWasDropped) {
  Options o = options("always_wrong");
  o.plugins = {"always_wrong", "cpu"};
  o.use_cache = false;
  int won_behind_dropped = 0;
  for (int attempt = 0; attempt < 10 && won_behind_dropped == 0; ++attempt) {
    Service s = serve(o);
    const auto report = s.session->compile(s.inputs);
    ASSERT_TRUE(report.ok()) << report.status().text();
    int dropped = 0, chosen = 0;
    for (const CandidateReport& c : report->candidates) {
      dropped += chosen == 0 && c.reason == "wrong_result";
      if (c.name != report->chosen) continue;
      ++chosen;
      EXPECT_TRUE(c.reason == "baseline" || c.reason == "faster") << c.name << " was chosen, though " << c.reason << ": " << c.note;
      EXPECT_TRUE(c.verified);
      EXPECT_EQ(c.milliseconds, report->chosen_ms);
      won_behind_dropped += c.reason == "faster" && dropped > 0;
    }
    EXPECT_EQ(chosen, 1) << report->chosen;
    const auto outputs = s.session->call(s.inputs);
    ASSERT_TRUE(outputs.ok());
    EXPECT_TRUE(right(*outputs, s.expected));
    if (HasFailure()) return;
  }
  EXPECT_GT(won_behind_dropped, 0) << "else nothing was tried";
}

class RefusedRegion : public ServiceFaults, public testing::WithParamInterface<const char*> {};

// A plugin that claims a region and then will not compile it loses that region: the other one stays compiled.
TEST_P(RefusedRegion, CostsThatRegion) {
  Options o = options(GetParam());
  o.force = "compiled";
  Service s = serve(o);
  const auto report = s.session->compile(s.inputs);
  ASSERT_TRUE(report.ok()) << report.status().text();
  const std::string text = explain_text(*report);
  EXPECT_EQ(report->plugin, GetParam()) << text;
  EXPECT_TRUE(report->verified) << text;
  bool all = false, named = false;
  for (const CandidateReport& c : report->candidates) all |= c.name == std::string(GetParam()) + "/all" && c.verified;
  for (const std::string& reason : report->reasons)
    named |= has(reason, std::string(GetParam()) + "/all without r0") && has(reason, "not this one after all");
  EXPECT_TRUE(all) << text;
  EXPECT_TRUE(named) << text;
  EXPECT_GT(report->nodes_compiled, 0) << text;
  EXPECT_LT(report->nodes_compiled, report->nodes) << text;
  const auto outputs = s.session->call(s.inputs);
  ASSERT_TRUE(outputs.ok());
  EXPECT_TRUE(right(*outputs, s.expected));
}
INSTANTIATE_TEST_SUITE_P(All, RefusedRegion, testing::Values("refuses_unsupported", "refuses_internal"),
                         [](const auto& info) { return std::string(info.param); });

// A plugin that is wrong for one kind of operator loses those: they run eagerly, the rest stays compiled, and whoever comes next knows.
TEST_F(ServiceFaults, AWrongOperatorCostsItself) {
  for (const bool again : {false, true}) {
    SCOPED_TRACE(again ? "the next start" : "the first start");
    const ModelReport report = decide_for("wrong_relu");
    const std::string text = explain_text(report);
    EXPECT_EQ(report.plugin, "wrong_relu") << text;
    EXPECT_TRUE(report.verified) << text;
    EXPECT_GT(report.nodes_compiled, 0) << text;
    EXPECT_LT(report.nodes_compiled, report.nodes) << text;
    int found = 0;
    for (const std::string& reason : report.reasons) found += has(reason, "wrong_relu is wrong for relu");
    EXPECT_EQ(found, again ? 0 : 1) << text;
    EXPECT_FALSE(has(text, "operators together")) << text;
    for (const StepReport& step : report.steps) EXPECT_EQ(step.choice == "eager", step.name == "relu") << text;
  }
}

// Operators that are right alone and wrong together are taken apart.
TEST_F(ServiceFaults, WhatIsWrongTogetherIsTakenApart) {
  for (const bool again : {false, true}) {
    SCOPED_TRACE(again ? "the next start" : "the first start");
    const ModelReport report = decide_for("wrong_together");
    const std::string text = explain_text(report);
    EXPECT_EQ(report.plugin, "wrong_together") << text;
    EXPECT_TRUE(report.verified) << text;
    EXPECT_GT(report.nodes_compiled, 1) << text;
    EXPECT_EQ(has(text, "operators together, from"), !again) << text;
    EXPECT_FALSE(has(text, "answered wrong before")) << text;
    int regions = 0;
    for (const StepReport& step : report.steps) {
      regions += step.choice == "wrong_together";
      EXPECT_EQ(step.ops, 1) << text;
    }
    EXPECT_GT(regions, 1) << text;
  }
}

// Where finding what is wrong would take more trials than are made for a region, it is cut in parts, and what is left is small enough:
// of operators that are wrong together, and of one that is wrong by itself ninety-six times.
TEST_F(ServiceFaults, ALongRegionIsCutWhereTheTrialsEnd) {
  for (const char* fault : {"wrong_together", "wrong_relu"}) {
    const ModelReport report = decide_for(fault, "tests/data/import/deep.pt2");
    const std::string text = explain_text(report);
    EXPECT_EQ(report.plugin, fault) << text;
    EXPECT_TRUE(report.verified) << text;
    EXPECT_TRUE(has(text, "took too long, so it is cut in parts")) << text;
    EXPECT_FALSE(has(text, "were wrong again after")) << text;
    EXPECT_EQ(report.nodes_compiled * 2, report.nodes) << "a relu alone pays for no kernel, or is wrong\n" << text;
    for (const StepReport& step : report.steps) EXPECT_EQ(step.ops, 1) << text;
  }
}

// A region that is wrong in a plan, and so is what is made of it in the next one, while nothing is when it is looked at alone: it is halved
// as often as that is tried, and then what is left of it stays eager, and the rest compiled.
TEST_F(ServiceFaults, WhatIsWrongAfterAllRepairsIsLeftOut) {
  for (const bool again : {false, true}) {
    SCOPED_TRACE(again ? "the next start" : "the first start");
    const ModelReport report = decide_for("wrong_second", "tests/data/import/deep.pt2");
    const std::string text = explain_text(report);
    EXPECT_EQ(report.plugin, "wrong_second") << text;
    EXPECT_EQ(report.chosen, "wrong_second/all") << text;
    EXPECT_TRUE(report.verified) << text;
    EXPECT_EQ(has(text, "were wrong again after"), !again) << text;
    EXPECT_TRUE(has(text, "answered wrong before")) << text;
    EXPECT_EQ(report.nodes_compiled, report.nodes - 3) << text;
  }
}

// What is wrong in a region is found although no output of the model shows it; here nothing is left of the plans.
TEST_F(ServiceFaults, ARegionIsJudgedWhereTheWholeHidesIt) {
  const ModelReport report = decide_for("wrong_linear", "tests/data/import/hidden_relu.pt2");
  const std::string text = explain_text(report);
  EXPECT_TRUE(has(text, "wrong_linear is wrong for linear")) << text;
  EXPECT_TRUE(report.chosen == "eager" || report.chosen == "replay") << text;
  for (const CandidateReport& c : report.candidates) EXPECT_FALSE(!c.plugin.empty() && c.verified) << text;
}

// So it is where the last layer's weights are zeros, which no inputs change: other weights show it.
TEST_F(ServiceFaults, APlanThatIsWrongBehindAHeadOfZerosIsRefused) {
  const ModelReport report = decide_for("wrong_relu", "tests/data/import/head_of_zeros.pt2");
  const std::string text = explain_text(report);
  EXPECT_EQ(report.chosen, "wrong_relu/anchors_only") << text;
  for (const CandidateReport& c : report.candidates) {
    if (c.name != "wrong_relu/all") continue;
    EXPECT_FALSE(c.verified) << text;
    EXPECT_TRUE(has(c.note, "with other weights")) << text;
  }
}

TEST_F(ServiceFaults, WhatRoundsTooMuchBehindAHeadOfZerosIsNotRounded) {
  Options o = rounding_options();
  Service s = serve(o, "tests/data/import/head_of_zeros.pt2");
  const auto report = s.session->compile(s.inputs);
  ASSERT_TRUE(report.ok()) << report.status().text();
  const std::string text = explain_text(*report);
  EXPECT_TRUE(has(text, "they are not rounded any more")) << text;
  EXPECT_EQ(report->plugin, "coarse_linear") << text;
  EXPECT_TRUE(report->verified) << text;
  EXPECT_GE(report->nodes_compiled, 3) << text;
}

// What eager refuses may not be answered: only the cut that leaves the rows to eager is right.
TEST_F(ServiceFaults, APlanThatTakesAnyIndexIsRefused) {
  const ModelReport report = decide_for("takes_any_index", "tests/data/import/rows.pt2");
  const std::string text = explain_text(report);
  EXPECT_TRUE(has(text, "it answers where eager refuses \"index\"")) << text;
  EXPECT_EQ(report.chosen, "takes_any_index/anchors_only") << text;
  for (const CandidateReport& c : report.candidates) EXPECT_FALSE(c.name == "takes_any_index/all" && c.verified) << text;
}

// Roundings alone move this model's answer everywhere, so the whole shows nothing: its regions do.
TEST_F(ServiceFaults, AWrongOperatorOfASensitiveModelIsFound) {
  const ModelReport report = decide_for("wrong_linear", "tests/data/sensitive/iterated.pt2");
  const std::string text = explain_text(report);
  EXPECT_TRUE(has(text, "roundings alone move")) << text;
  EXPECT_TRUE(has(text, "wrong_linear is wrong for linear")) << text;
}

// Products whose rounded operands are too coarse are compiled without rounding, and stay compiled. So they are when the decision is read
// again, and when it is made again.
TEST_F(ServiceFaults, AProductThatRoundsTooMuchIsNotRounded) {
  Options o = rounding_options();
  for (const bool again : {false, true}) {
    Service s = serve(o);
    const auto report = s.session->compile(s.inputs);
    ASSERT_TRUE(report.ok()) << report.status().text();
    const std::string text = explain_text(*report);
    EXPECT_EQ(has(text, "its operands are not rounded any more"), !again) << text;
    EXPECT_FALSE(has(text, "left out of the plan")) << text;
    EXPECT_EQ(report->plugin, "coarse_linear") << text;
    EXPECT_TRUE(report->verified) << text;
    EXPECT_GE(report->nodes_compiled, 3) << "its products; which of two plans that have them wins is a matter of microseconds: " << text;
    const auto outputs = s.session->call(s.inputs);
    EXPECT_TRUE(outputs.ok() && right(*outputs, s.expected));
  }
  o.numerics = Numerics::kDefault;
  Service s = serve(o);
  const auto report = s.session->compile(s.inputs);
  ASSERT_TRUE(report.ok()) << report.status().text();
  EXPECT_TRUE(report->chosen == "eager" || report->chosen == "replay")
      << "who rounds where it may not is left out: " << explain_text(*report);
}

// A race that others disturb from end to end chooses nothing slower than eager.
TEST_F(ServiceFaults, ASlowPlanIsNotChosenBesideOthers) {
  nobody_.each_time = 1e12;
  Options o = options("slow_region");
  o.compile = When::kBackground;
  o.threads = 1;
  Service s = serve(o);
  ASSERT_TRUE(s.session->call(s.inputs).ok());
  ASSERT_TRUE(s.session->settle(std::chrono::seconds(120)));
  const ModelReport report = s.session->reports().back();
  EXPECT_FALSE(report.disturbed.empty());
  bool raced = false;
  for (const CandidateReport& c : report.candidates) raced |= c.plugin == "slow_region" && c.reason == "disturbed";
  EXPECT_TRUE(raced) << explain_text(report);
  EXPECT_TRUE(report.chosen == "eager" || report.chosen == "replay") << explain_text(report);
}

// A plan that is faster without one of its regions loses it.
TEST_F(ServiceFaults, ARegionThatCostsTimeIsLeftOut) {
  const ModelReport report = decide_for("slow_region", kMlp, true);
  const std::string text = explain_text(report);
  EXPECT_TRUE(has(report.chosen, "-r1")) << text;
  EXPECT_TRUE(has(text, "it is faster without 1 of them")) << "the others pay, and stay: " << text;
  EXPECT_TRUE(report.verified) << text;
  EXPECT_GT(report.nodes_compiled, 0) << text;
  EXPECT_LT(report.chosen_ms, 20) << text;
}

// A plan that is right for the sizes met and wrong for larger ones: the check at those refuses it at all sizes that nobody checked.
TEST_F(ServiceFaults, ARangeIsRefusedWhereItsPlanIsWrongSomewhere) {
  Service s = serve_sizes("wrong_many_rows");
  for (const int64_t batch : {3, 5, 3, 5}) EXPECT_TRUE(call_is_right(s, batch));
  const ModelReport report = s.session->reports().back();
  const std::string text = explain_text(report);
  EXPECT_TRUE(has(s.session->reports().front().chosen, "wrong_many_rows")) << "right at the first size, and asked for: " << text;
  ASSERT_FALSE(report.ranges.ranges.empty()) << text;
  EXPECT_GT(report.ranges.sizes.at(0).max, 20) << "large enough for it to be wrong";
  for (const RangeReport& range : report.ranges.ranges) EXPECT_FALSE(has(range.choice, "wrong_many_rows")) << text;
  for (const int64_t batch : {4, 19, 22, 40, 4, 19, 22, 40}) EXPECT_TRUE(call_is_right(s, batch)) << batch;
}

// A plan that is right wherever it is compiled and wrong where it is made of another size's: that is judged too, where a range is checked.
TEST_F(ServiceFaults, ARangeIsRefusedWherePlansOfOtherSizesAreWrong) {
  Service s = serve_sizes("wrong_resize");
  for (const int64_t batch : {3, 5, 3, 5}) EXPECT_TRUE(call_is_right(s, batch));
  const ModelReport report = s.session->reports().back();
  const std::string text = explain_text(report);
  EXPECT_TRUE(has(s.session->reports().front().chosen, "wrong_resize")) << text;
  EXPECT_TRUE(has(text, "made of what there is for other sizes, is wrong")) << text;
  ASSERT_FALSE(report.ranges.ranges.empty()) << text;
  for (const RangeReport& range : report.ranges.ranges) EXPECT_FALSE(has(range.choice, "wrong_resize")) << text;
  for (const int64_t batch : {4, 7, 6, 4, 7, 6}) EXPECT_TRUE(call_is_right(s, batch)) << batch;
}

// What was right wherever it was checked and turns wrong in service: the first calls of sizes between are compared, and the range closes.
TEST_F(ServiceFaults, ARangeClosesWhereOneOfItsSizesIsWrongInService) {
  Service s = serve_sizes("switched_run");
  for (const int64_t batch : {3, 5, 4, 7}) EXPECT_TRUE(call_is_right(s, batch));
  ASSERT_FALSE(s.session->reports().back().ranges.ranges.empty()) << explain_text(s.session->reports().back());
  EXPECT_TRUE(has(s.session->reports().back().ranges.ranges[0].choice, "switched_run")) << explain_text(s.session->reports().back());
  EXPECT_EQ(s.session->reports().back().ranges.entered, 2u) << "4 and 7";
  turn("wrong");
  EXPECT_FALSE(call_is_right(s, 4)) << "the plan's answer, which is compared afterwards";
  const std::string text = explain_text(s.session->reports().back());  // waits for the comparison
  EXPECT_TRUE(has(text, "a range of sizes was closed: switched_run/")) << text;
  EXPECT_FALSE(s.session->reports().back().ranges.ranges[0].closed.empty());
  for (const int64_t batch : {4, 7, 6, 4, 7, 6}) EXPECT_TRUE(call_is_right(s, batch)) << batch;
}

// In shadow a plan that turned wrong is found and revoked, and no caller ever saw its answer.
TEST_F(ServiceFaults, AWrongPlanInShadowIsRevokedUnseen) {
  Options o = options("switched_run");
  o.force = "compiled";
  o.plans = Plans::kShadow;
  Service s = serve(o);
  ASSERT_TRUE(s.session->compile(s.inputs).ok());
  ASSERT_EQ(s.session->activity().plans, 1u) << explain_text(s.session->reports().back());
  const auto shadowed = [&] {
    const auto outputs = s.session->call(s.inputs);
    EXPECT_TRUE(outputs.ok() && right(*outputs, s.expected));
    return explain_text(s.session->reports().back());  // waits for the comparison
  };
  shadowed();
  EXPECT_EQ(s.session->activity().shadow_right, 1u);
  turn("wrong");
  const std::string text = shadowed();
  EXPECT_EQ(s.session->activity().shadow_wrong, 1u);
  EXPECT_EQ(s.session->activity().plans, 0u) << text;
  EXPECT_TRUE(has(text, "revoked: switched_run/")) << text;
  s.session->set_plans(Plans::kOn);
  shadowed();
  EXPECT_EQ(s.session->activity().by_plan, 0u);
}

// Also where it is wrong now and then only.
TEST_F(ServiceFaults, APlanInShadowThatIsWrongNowAndThenIsRevokedUnseen) {
  Options o = options("switched_run");
  o.force = "compiled";
  o.plans = Plans::kShadow;
  o.shadow_rate = 2;
  Service s = serve(o);
  ASSERT_TRUE(s.session->compile(s.inputs).ok());
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(right(*s.session->call(s.inputs), s.expected));
  (void)s.session->reports();  // waits for the comparisons
  turn("sometimes");
  for (int i = 0; i < 1000 && s.session->activity().shadow_wrong == 0; ++i) {
    const auto outputs = s.session->call(s.inputs);
    ASSERT_TRUE(outputs.ok() && right(*outputs, s.expected));
    (void)s.session->reports();
  }
  EXPECT_EQ(s.session->activity().shadow_wrong, 1u);
  EXPECT_EQ(s.session->activity().plans, 0u) << explain_text(s.session->reports().back());
}

// What a plugin keeps of each run is its worker's: at the worker's limit it ends, and eager answers.
TEST_F(ServiceFaults, ALeakInTheWorkerEndsAtItsLimitAndCostsNoCall) {
  if (sanitizer_kind() != 0) GTEST_SKIP() << "a sanitizer's shadow memory leaves no room for a limit";
  Options o = options("switched_run");
  o.force = "compiled";
  o.run_in = "worker";
  o.sample_rate = 0;
  {
    Service s = serve(o);
    const auto report = s.session->compile(s.inputs);
    ASSERT_TRUE(report.ok()) << report.status().text();
    ASSERT_TRUE(has(report->chosen, "switched_run")) << explain_text(*report);
    turn("hoard");  // 1 GiB a run, of which half as many as the machine has are the limit
    int calls = 0;
    for (; calls < 2000 && s.session->activity().eager_instead == 0; ++calls) {
      const auto outputs = s.session->call(s.inputs);
      ASSERT_TRUE(outputs.ok() && right(*outputs, s.expected)) << calls;
    }
    EXPECT_GT(calls, 1) << "the first runs are within the limit";
    for (int i = 0; i < 10; ++i) {
      const auto outputs = s.session->call(s.inputs);
      EXPECT_TRUE(outputs.ok() && right(*outputs, s.expected));
    }
    const std::string text = explain_text(s.session->reports().back());
    std::printf("leak: %s\n", s.session->reports().back().reasons.back().c_str());
    EXPECT_TRUE(has(text, "revoked: a call of the plan failed")) << text;
    EXPECT_EQ(text.find("revoked"), text.rfind("revoked")) << "said once";
    EXPECT_EQ(s.session->activity().eager_instead, 1u) << "in the place of the run that failed; later ones are not the plan's";
  }
  turn("");
  Service s = serve(o);
  const auto report = s.session->compile(s.inputs);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(has(explain_text(*report), "quarantined")) << explain_text(*report);
}

// Workers that somebody kills while a plan is judged and its regions are tried show nothing wrong about the plugin.
TEST_F(ServiceFaults, AWorkerKilledWhileAPlanIsJudgedIsNoWrongAnswer) {
  Options o = options("switched_run");
  o.force = "compiled";
  o.run_in = "worker";
  for (int most = 0; most < 8; ++most) {  // in its first run, its second and so on
    turn("killed" + std::to_string(most));
    Service s = serve(o);
    const auto report = s.session->compile(s.inputs);
    ASSERT_TRUE(report.ok()) << report.status().text();
    EXPECT_FALSE(has(explain_text(*report), "wrong for")) << most << ": " << explain_text(*report);
    const auto outputs = s.session->call(s.inputs);
    EXPECT_TRUE(outputs.ok() && right(*outputs, s.expected));
  }
  turn("");
  Service s = serve(o);
  const auto report = s.session->compile(s.inputs);
  ASSERT_TRUE(report.ok()) << report.status().text();
  EXPECT_TRUE(has(report->chosen, "switched_run")) << "nothing is remembered of it: " << explain_text(*report);
}

// One that fails in shadow costs no call and has its breaker open.
TEST_F(ServiceFaults, APlanThatFailsInShadowIsCounted) {
  Options o = options("switched_run");
  o.force = "compiled";
  o.plans = Plans::kShadow;
  o.shadow_rate = 1;
  Service s = serve(o);
  ASSERT_TRUE(s.session->compile(s.inputs).ok());
  turn("error");
  for (int i = 0; i < 4; ++i) {
    const auto outputs = s.session->call(s.inputs);
    EXPECT_TRUE(outputs.ok() && right(*outputs, s.expected));
    (void)s.session->reports();
  }
  EXPECT_EQ(s.session->activity().shadow_failed, static_cast<uint64_t>(CircuitBreaker::kFailures));
  EXPECT_EQ(s.session->activity().breakers_open, 1u);
}

TEST(FirstBadPass, IsTheLastOfTheShortestRowThatFails) {
  const std::vector<std::string> passes{"a", "b", "c", "d"};
  const auto needs = [](const std::vector<std::string>& needed) {
    return [needed](const std::vector<std::string>& disabled) {
      return std::none_of(needed.begin(), needed.end(),
                          [&](const std::string& p) { return std::find(disabled.begin(), disabled.end(), p) != disabled.end(); });
    };
  };
  EXPECT_EQ(first_bad_pass(passes, needs({"b"})), "b");
  EXPECT_EQ(first_bad_pass(passes, needs({"a", "c"})), "c") << "c is wrong about what a leaves";
  EXPECT_EQ(first_bad_pass(passes, needs({})), "") << "no pass is needed";
  EXPECT_EQ(first_bad_pass(passes, [](const auto&) { return false; }), "");
}

TEST_F(ServiceFaults, FailedRunsAreAnsweredEagerlyAndOpenTheBreaker) {
  Options o = options("switched_run");
  o.force = "compiled";
  Service s = serve(o);
  const auto report = s.session->compile(s.inputs);
  ASSERT_TRUE(report.ok());
  ASSERT_TRUE(has(report->chosen, "switched_run")) << explain_text(*report);
  turn("error");
  for (int i = 0; i < 10; ++i) {
    auto outputs = s.session->call(s.inputs);
    ASSERT_TRUE(outputs.ok()) << outputs.status().text();
    EXPECT_TRUE(right(*outputs, s.expected));
  }
  const std::string text = explain_text(s.session->reports().back());
  std::printf("%s\n", s.session->reports().back().reasons.back().c_str());
  EXPECT_TRUE(has(text, "the plan failed 3 times, last with: the run failed as it was told to")) << text;
}

}  // namespace
}  // namespace keirin
