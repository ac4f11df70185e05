// SPDX-License-Identifier: Apache-2.0
//
// When things are decided: eager answers the first call at once, a thread decides beside calls and swaps its plan in, a
// session closes in the midst of that, what earlier processes decided is used soon and without compiling, and a model
// that writes or draws is left alone.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <thread>

#include "core/api/known_run.h"
#include "core/api/met_sizes.h"
#include "core/api/session.h"
#include "core/base/background.h"
#include "core/base/request.h"
#include "core/cache/cache.h"
#include "core/tune/beside_others.h"
#include "tests/support/others.h"
#include "tests/support/shared_runtime.h"
#include "tests/support/temp_folder.h"

namespace keirin {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Tensors = std::vector<TensorRef>;
using test::shared_runtime;

constexpr auto kLong = 300s;  // more than any decision here takes on a busy machine

test::Others nobody;

std::string zoo(const std::string& name) {
  return std::string(KEIRIN_SOURCE_DIR) + "/bench/zoo/models/small/" + name + ".pt2";
}
std::string data(const std::string& name) {
  return std::string(KEIRIN_SOURCE_DIR) + "/tests/data/import/" + name + ".pt2";
}

Options options_of(When when) {
  Options options;
  options.compile = when;
  options.race_seconds = 0.2;
  options.interference = &nobody;
  return options;
}

std::unique_ptr<Session> open(Runtime& runtime, const std::string& path, const Options& options) {
  auto session = Session::open(runtime, path, options);
  EXPECT_TRUE(session.ok()) << session.status().text();
  return session.ok() ? std::move(*session) : nullptr;
}

Tensors inputs_of(Session& session, const std::vector<int64_t>& sizes = {}) {
  auto inputs = session.example_inputs(1, sizes);
  EXPECT_TRUE(inputs.ok()) << inputs.status().text();
  return inputs.ok() ? *inputs : Tensors();
}

double difference(const TensorRef& a, const TensorRef& b) {
  const auto *x = static_cast<const float*>(a->data()), *y = static_cast<const float*>(b->data());
  int64_t n = 1;
  for (int64_t d = 0; d < a->rank(); ++d) n *= a->sizes()[d];
  double worst = 0;
  for (int64_t i = 0; i < n; ++i) worst = std::max(worst, std::fabs(static_cast<double>(x[i]) - y[i]));
  return worst;
}

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

TEST(MetSizes, AreNewOnceAndSoMany) {
  TensorServices& services = shared_runtime().tensors();
  const auto of = [&](const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides = {}) {
    return Tensors{*services.allocate({DType::k_f32, sizes, strides, {}})};
  };
  MetSizes met(3);
  EXPECT_EQ(met.meet(of({2, 3})), MetSizes::Answer::kNew);
  EXPECT_EQ(met.meet(of({2, 3})), MetSizes::Answer::kKnown);
  EXPECT_EQ(met.meet(of({2, 3}, {1, 2})), MetSizes::Answer::kNew) << "other strides";
  EXPECT_EQ(met.meet(of({1, 3})), MetSizes::Answer::kNew);
  EXPECT_EQ(met.meet(of({1, 3}, {7, 1})), MetSizes::Answer::kKnown) << "the stride of one row is nobody's";
  EXPECT_EQ(met.meet(of({4, 3})), MetSizes::Answer::kTooMany);
  EXPECT_EQ(met.meet(of({2, 3})), MetSizes::Answer::kKnown);
}

TEST(KnownRun, IsReadAsItWasWritten) {
  KnownRun run;
  run.seen.values["a"] = {{2, 3}, {3, 1}, "x", true};
  run.seen.values["body/b"] = {{}, {}, "", false};
  run.seen.overlapping_writes = {"n"};
  run.seen.written_weights = {3, 5};
  run.seen.written_inputs = {1};
  run.seen.reads_storage = true;
  run.seen.draws_random = true;
  run.seen.whole_products = {"conv", "conv_1/1"};
  run.forms.specs = {{DType::k_f32, {2, 3}, {1, 2}, {Device::kCuda, 1}}, {}};
  run.forms.views = {{1, OutputView::Of::kWeight, 7, -8}};
  const std::string text = known_run_text(run);
  const auto read = parse_known_run(text);
  ASSERT_TRUE(read.ok()) << read.status().text();
  EXPECT_EQ(known_run_text(*read), text);
  EXPECT_EQ(read->seen.values.at("a").strides, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(read->seen.values.at("a").view_of, "x");
  EXPECT_TRUE(read->seen.values.at("a").fills_storage && read->seen.reads_storage && read->seen.draws_random);
  EXPECT_EQ(read->seen.written_weights, run.seen.written_weights);
  EXPECT_EQ(read->seen.written_inputs, run.seen.written_inputs);
  EXPECT_EQ(read->forms.specs[0].device, run.forms.specs[0].device);
  EXPECT_EQ(read->forms.specs[1].dtype, DType::kNone);
  EXPECT_EQ(read->forms.views[0].byte_offset, -8);
  for (const std::string& bad : {std::string(), std::string("[]"), text.substr(0, text.size() / 2),
                                 std::string(R"({"schema":"keirin/known/1"})")})
    EXPECT_EQ(parse_known_run(bad).status().code(), Code::k_corrupt) << bad;
  run.forms.views = {{2, OutputView::Of::kInput, 0, 0}};
  EXPECT_FALSE(parse_known_run(known_run_text(run)).ok()) << "a view of something that is not an output";
}

// The counter counts, or that it is 0 elsewhere means nothing: with and without steps on threads of their own.
TEST(CompilesOnRequests, AreCountedWhereTheyHappen) {
  for (const When when : {When::kNow, When::kBackground}) {
    auto session = open(shared_runtime(), zoo("mlp"), options_of(when));
    const Tensors inputs = inputs_of(*session);
    const uint64_t before = compiles_on_requests();
    {
      const RequestScope request;
      EXPECT_TRUE(answers_request());
      ASSERT_TRUE(session->compile(inputs).ok());
    }
    EXPECT_FALSE(answers_request());
    EXPECT_GT(compiles_on_requests(), before);
    EXPECT_EQ(session->reports().back().compiles_on_requests, compiles_on_requests());
    const uint64_t after = compiles_on_requests();
    ASSERT_TRUE(session->compile(inputs).ok());
    EXPECT_EQ(compiles_on_requests(), after) << "nobody waited for an answer";
  }
}

TEST(TimeLine, EagerAnswersFirstAndThePlanComesLater) {
  const uint64_t compiled = compiles_on_requests();
  Options options = options_of(When::kBackground);
  std::atomic<bool> on_caller{false}, decided{false};
  options.progress = [&, caller = std::this_thread::get_id()](const std::string&, double, double) {
    on_caller = on_caller || std::this_thread::get_id() == caller;
    decided = true;
  };
  options.force = "compiled";
  auto session = open(shared_runtime(), zoo("mlp"), options);
  const Tensors inputs = inputs_of(*session);
  const auto eager = session->call_eager(inputs);
  ASSERT_TRUE(eager.ok());
  const auto first = session->call(inputs);
  ASSERT_TRUE(first.ok()) << first.status().text();
  EXPECT_EQ(difference((*first)[0], (*eager)[0]), 0) << "eager's own bits";
  ASSERT_TRUE(session->settle(kLong));
  EXPECT_TRUE(session->is_decided(inputs));
  EXPECT_TRUE(decided);
  EXPECT_FALSE(on_caller) << "a call decided";
  const std::vector<ModelReport> reports = session->reports();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_NE(reports[0].chosen, "eager") << explain_text(reports[0]);
  EXPECT_TRUE(reports[0].verified);
  const auto later = session->call(inputs);
  ASSERT_TRUE(later.ok());
  EXPECT_LT(difference((*later)[0], (*eager)[0]), 1e-4);
  EXPECT_EQ(compiles_on_requests(), compiled);
  EXPECT_EQ(to_json(session->reports().back()).at("compiles_on_requests"), compiled);
}

// A service whose calls never leave a quiet moment: every stretch of a race is disturbed, and what is clearly faster answers all the same.
// No figure of it is shown or kept.
void expect_faster_beside_others(int num_threads, const std::string& path, const std::vector<int64_t>& sizes) {
  if (!OwnClock().ticks()) GTEST_SKIP() << "this kernel does not count what threads wait";
  test::Others busy;
  busy.each_time = 1e12;
  const test::TempFolder folder;
  Options options = options_of(When::kBackground);
  options.interference = &busy;
  options.threads = num_threads;
  options.memory_limit = 10;
  options.race_seconds = 1;
  options.cache_dir = folder.path() + "/cache";
  auto runtime = Runtime::open(options);
  ASSERT_TRUE(runtime.ok()) << runtime.status().text();
  auto session = open(**runtime, path, options);
  const Tensors inputs = inputs_of(*session, sizes);
  const auto eager = session->call_eager(inputs);
  const int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  for (int i = 0; i < threads; ++i)
    others.emplace_back([&] {
      while (!stop) {
      }
    });
  ASSERT_TRUE(session->call(inputs).ok());
  const bool settled = session->settle(kLong);
  stop = true;
  for (std::thread& other : others) other.join();
  ASSERT_TRUE(settled);
  const ModelReport report = session->reports().back();
  EXPECT_EQ(report.chosen.rfind("cpu/", 0), 0u) << explain_text(report);
  EXPECT_FALSE(report.disturbed.empty());
  EXPECT_EQ(report.speedup, 1);
  EXPECT_EQ(report.chosen_ms, 0);
  EXPECT_NE(report.reasons.at(0).find(report.chosen + " answers, which is faster by more than a tenth"), std::string::npos)
      << report.reasons.at(0);
  const uint64_t by_plan = session->activity().by_plan;
  const auto outputs = session->call(inputs);
  ASSERT_TRUE(outputs.ok());
  EXPECT_LT(difference((*outputs)[0], (*eager)[0]), 1e-4);
  EXPECT_EQ(session->activity().by_plan, by_plan + 1);
  // The next process decides itself.
  options.compile = When::kNever;
  auto next = open(**runtime, path, options);
  ASSERT_TRUE(next->call(inputs).ok());
  ASSERT_TRUE(next->settle(kLong));
  EXPECT_EQ(next->reports().back().chosen, "eager") << "nothing was kept";
}

TEST(TimeLine, WhatIsClearlyFasterAnswersBesideOthers) { expect_faster_beside_others(1, zoo("mlp"), {}); }
// Of two threads that share the work: three passes over a megabyte and more each, or one.
TEST(TimeLine, WhatIsClearlyFasterForATeamAnswersBesideOthers) { expect_faster_beside_others(2, data("both_free"), {1024, 1024}); }

// A model that is replaced while others have the machine: what a disturbed race chose for the session before answers in this one at once,
// without another race; who asks for a decision of its own gets one, and another process knows nothing of it.
TEST(TimeLine, WhatADisturbedRaceChoseHoldsForTheNextSession) {
  test::Others busy;
  busy.each_time = 1e12;
  const test::TempFolder folder;
  Options options = options_of(When::kBackground);
  options.interference = &busy;
  options.cache_dir = folder.path() + "/cache";
  auto runtime = Runtime::open(options);
  ASSERT_TRUE(runtime.ok()) << runtime.status().text();
  const auto decide = [&] {
    std::atomic<int> races{0};
    Options counting = options;
    counting.progress = [&](const std::string& what, double, double) { races += what.ends_with(": race"); };
    auto session = open(**runtime, zoo("mlp"), counting);
    EXPECT_TRUE(session->call(inputs_of(*session)).ok());
    EXPECT_TRUE(session->settle(kLong));
    const ModelReport report = session->reports().at(0);
    EXPECT_FALSE(report.disturbed.empty());
    EXPECT_EQ(report.chosen_ms, 0) << "no figure of it is shown";
    session.reset();
    return std::pair(report, races.load());
  };
  const auto [first, raced] = decide();
  EXPECT_GT(raced, 0);
  const auto [second, again] = decide();
  EXPECT_EQ(again, 0) << explain_text(second);
  EXPECT_EQ(second.chosen, first.chosen);
  EXPECT_NE(second.reasons.at(0).find("decided before in this process, by a race that was disturbed"), std::string::npos)
      << second.reasons.at(0);
  CacheOptions elsewhere;
  elsewhere.dir = options.cache_dir;
  for (const EntryInfo& entry : Cache(elsewhere).list()) EXPECT_NE(entry.kind, EntryKind::kLedger) << "nobody else is told";
  busy.each_time = 0;
  Options now = options;
  now.compile = When::kNow;
  auto session = open(**runtime, zoo("mlp"), now);
  const auto report = session->compile(inputs_of(*session));
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->disturbed.empty()) << "who waits for a decision gets a race";
  EXPECT_EQ(explain_text(*report).find("decided before"), std::string::npos);
}

// What compile() decided for a service while others had the machine is decided again when they have it no more.
TEST(TimeLine, WhatOthersDisturbedIsDecidedAgainWhenTheProcessorsAreIdle) {
  test::Others busy;
  busy.each_time = 1e12;
  Options options = options_of(When::kBackground);
  options.interference = &busy;
  auto session = open(shared_runtime(), data("mlp"), options);
  const Tensors inputs = inputs_of(*session);
  const auto report = session->compile(inputs);
  ASSERT_TRUE(report.ok()) << report.status().text();
  EXPECT_FALSE(report->disturbed.empty());
  busy.each_time = 0;
  for (const Clock::time_point begin = Clock::now(); session->reports().size() < 2 && Clock::now() - begin < 60s;)
    std::this_thread::sleep_for(100ms);
  if (session->reports().size() < 2 && !processors_are_idle()) GTEST_SKIP() << "the machine is not idle";
  ASSERT_EQ(session->reports().size(), 2u);
  EXPECT_TRUE(session->reports().back().disturbed.empty()) << explain_text(session->reports().back());
}

// A model that is opened beside calls serves as any other: no thread of its own gives way for good.
TEST(TimeLine, AModelThatIsOpenedInTheBackgroundDoesNotStayThere) {
  auto session = in_background([] { return open(shared_runtime(), data("mlp"), options_of(When::kBackground)); });
  const Tensors inputs = inputs_of(*session);
  in_background([&] {
    EXPECT_TRUE(session->call(inputs).ok());  // it starts the session's thread
    return 0;
  });
  ASSERT_TRUE(session->settle(kLong));
  const int own = ::getpriority(PRIO_PROCESS, static_cast<id_t>(::getpid()));
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const int id = std::atoi(task.path().filename().c_str());
    EXPECT_NE(::sched_getscheduler(id), SCHED_IDLE);
    EXPECT_LE(::getpriority(PRIO_PROCESS, static_cast<id_t>(id)), own);
  }
}

// Calls meet what compile() decides meanwhile: it is decided once.
TEST(TimeLine, WhatIsDecidedMeanwhileIsNotDecidedTwice) {
  auto session = open(shared_runtime(), data("mlp"), options_of(When::kBackground));
  const Tensors inputs = inputs_of(*session);
  {
    const std::lock_guard turn(shared_runtime().decision_turn());
    ASSERT_TRUE(session->call(inputs).ok());  // its thread waits for the turn
    ASSERT_TRUE(session->compile(inputs).ok());
  }
  ASSERT_TRUE(session->settle(kLong));
  EXPECT_EQ(session->reports().size(), 1u);
}

// What eager refuses is not met, and costs no other call its decision.
TEST(TimeLine, WhatEagerRefusesIsNotDecidedAbout) {
  Options options = options_of(When::kBackground);
  options.max_shapes = 1;
  auto session = open(shared_runtime(), zoo("mlp"), options);
  const Tensors inputs = inputs_of(*session);
  Tensors bad = {*shared_runtime().tensors().allocate({DType::k_f32, {3, 1}, {}, {}})};
  EXPECT_FALSE(session->call(bad).ok());
  ASSERT_TRUE(session->settle(kLong));
  EXPECT_TRUE(session->reports().empty());
  ASSERT_TRUE(session->call(inputs).ok());
  ASSERT_TRUE(session->settle(kLong));
  EXPECT_TRUE(session->is_decided(inputs));
}

// A large input is not copied by the call that met it, but drawn anew; its sizes are decided all the same.
TEST(TimeLine, LargeInputsAreDrawnAnew) {
  auto session = open(shared_runtime(), data("both_free"), options_of(When::kBackground));
  const Tensors inputs = inputs_of(*session, {600, 500});
  ASSERT_GT(inputs[0]->storage_bytes(), 1 << 20);
  ASSERT_TRUE(session->call(inputs).ok());
  ASSERT_TRUE(session->settle(kLong));
  EXPECT_TRUE(session->is_decided(inputs)) << explain_text(session->reports().back());
}

TEST(TimeLine, SoManyKindsAreDecidedAndTheReportSaysSoOnce) {
  Options options = options_of(When::kBackground);
  options.max_shapes = 2;
  options.ranges = false;
  auto session = open(shared_runtime(), data("mlp"), options);
  for (const int64_t batch : {4, 5, 6, 7, 6}) ASSERT_TRUE(session->call(inputs_of(*session, {batch})).ok());
  ASSERT_TRUE(session->settle(kLong));
  EXPECT_TRUE(session->is_decided(inputs_of(*session, {4})));
  EXPECT_TRUE(session->is_decided(inputs_of(*session, {5})));
  EXPECT_FALSE(session->is_decided(inputs_of(*session, {6})));
  int said = 0;
  for (const ModelReport& report : session->reports())
    said += explain_text(report).find("2 kinds of calls were met before") != std::string::npos;
  EXPECT_EQ(said, 1);
}

TEST(TimeLine, CallersMeetTheSwapAndAnswersStayRight) {
  const uint64_t compiled = compiles_on_requests();
  Options options = options_of(When::kBackground);
  options.force = "compiled";
  auto session = open(shared_runtime(), data("mlp"), options);
  std::vector<Tensors> inputs, expected;
  for (const int64_t batch : {5, 9, 12}) {
    inputs.push_back(inputs_of(*session, {batch}));
    const auto eager = session->call_eager(inputs.back());
    ASSERT_TRUE(eager.ok());
    expected.push_back(*eager);
  }
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0}, calls{0}, by_plan{0};
  std::vector<std::thread> callers;
  for (size_t t = 0; t < 4; ++t)
    callers.emplace_back([&, t] {
      for (size_t i = t; !stop; ++i, ++calls) {
        const size_t k = i % inputs.size();
        const bool decided = session->is_decided(inputs[k]);
        const auto outputs = session->call(inputs[k]);
        if (!outputs.ok() || outputs->size() != expected[k].size() || difference((*outputs)[0], expected[k][0]) > 1e-3)
          ++wrong;
        by_plan += decided;
      }
    });
  const bool settled = [&] {  // each size was met once all threads began
    const auto end = Clock::now() + kLong;
    while (Clock::now() < end) {
      if (session->settle(1s) &&
          std::all_of(inputs.begin(), inputs.end(), [&](const Tensors& i) { return session->is_decided(i); }))
        return true;
      std::this_thread::sleep_for(10ms);
    }
    return false;
  }();
  const int at_swap = by_plan;
  while (settled && by_plan < at_swap + 20) std::this_thread::sleep_for(1ms);
  stop = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_TRUE(settled);
  EXPECT_EQ(wrong, 0) << "of " << calls;
  EXPECT_EQ(compiles_on_requests(), compiled);
  for (const ModelReport& report : session->reports()) EXPECT_NE(report.chosen, "eager") << explain_text(report);
}

// Whatever the decision is doing: the delays fall into capture, compiling, verifying and racing.
TEST(TimeLine, ASessionClosesInTheMidstOfADecision) {
  double longest = 0;
  for (const auto delay : {0ms, 120ms, 400ms, 1000ms, 2000ms, 4000ms}) {
    Options options = options_of(When::kBackground);
    options.race_seconds = 30;
    auto session = open(shared_runtime(), zoo("xlnet"), options);
    const Tensors inputs = inputs_of(*session);
    ASSERT_TRUE(session->call(inputs).ok());
    std::this_thread::sleep_for(delay);
    const Clock::time_point begin = Clock::now();
    session.reset();
    longest = std::max(longest, seconds(Clock::now() - begin));
  }
  RecordProperty("longest_close_ms", static_cast<int>(longest * 1e3));
  std::printf("closing took %.3f s at most\n", longest);
  EXPECT_LT(longest, 5) << "a decision of this model takes half a minute";
}

// Deciding about these runs them and puts back what they wrote and drew, beside calls: that would undo what the calls
// did.
TEST(TimeLine, ModelsThatWriteOrDrawAreLeftToCompile) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"counter", "a call may write \"steps\""},
      {"counter_functional", "a call may write"},
      {"train_norm", "a call may write"},
      {"writes_input", "a call may write \"x\""},
      {"draws", "a call may draw random numbers (aten::dropout)"}};
  for (const When when : {When::kBackground, When::kNever})
    for (const auto& [name, why] : cases) {
      SCOPED_TRACE(name);
      Options options = options_of(when);
      std::atomic<int> decisions{0};
      options.progress = [&](const std::string&, double, double) { ++decisions; };
      auto session = open(shared_runtime(), data(name), options);
      for (int call = 0; call < 3; ++call) {
        Tensors inputs = inputs_of(*session);
        if (name == "counter" || name == "counter_functional")
          inputs[1] = [&] {  // places that are there
            TensorRef at = *shared_runtime().tensors().clone(inputs[1]);
            for (int64_t i = 0; i < at->sizes()[0]; ++i) static_cast<int64_t*>(at->data())[i] = i + 1;
            return at;
          }();
        const auto outputs = session->call(inputs);
        ASSERT_TRUE(outputs.ok()) << outputs.status().text();
        ASSERT_TRUE(session->settle(kLong));
        EXPECT_FALSE(session->is_decided(inputs));
      }
      EXPECT_EQ(decisions, 0);
      int said = 0;
      for (const ModelReport& report : session->reports()) said += explain_text(report).find(why) != std::string::npos;
      EXPECT_EQ(said, 1) << (session->reports().empty() ? "no report" : explain_text(session->reports()[0]));
      if (when == When::kNever) continue;
      auto report = session->compile(inputs_of(*session));
      EXPECT_TRUE(report.ok()) << report.status().text();
    }
}

// State after n calls is n calls' state, whatever was asked for beside them.
TEST(TimeLine, NoCallsWriteIsLost) {
  auto session = open(shared_runtime(), data("counter"), options_of(When::kBackground));
  Tensors inputs = inputs_of(*session);
  inputs[1] = *shared_runtime().tensors().clone(inputs[1]);
  for (int64_t i = 0; i < inputs[1]->sizes()[0]; ++i) static_cast<int64_t*>(inputs[1]->data())[i] = i + 1;
  for (int call = 0; call < 200; ++call) ASSERT_TRUE(session->call(inputs).ok());
  ASSERT_TRUE(session->settle(kLong));
  for (const auto& [name, tensor] : session->weights())
    if (name == "steps") {
      EXPECT_EQ(*static_cast<const float*>(tensor->data()), 200);
    }
}

// A dropout that is off, and an operator that writes a value of the model's own, leave no mark: they are decided.
TEST(TimeLine, WhatLeavesNoMarkIsDecided) {
  for (const char* name : {"drops_nothing", "in_place", "mlp"}) {
    auto session = open(shared_runtime(), data(name), options_of(When::kBackground));
    const Tensors inputs = inputs_of(*session);
    ASSERT_TRUE(session->call(inputs).ok());
    ASSERT_TRUE(session->settle(kLong));
    EXPECT_TRUE(session->is_decided(inputs)) << name << ": " << explain_text(session->reports().back());
  }
}

// A model of segments is decided beside calls too.
TEST(TimeLine, AChainIsDecided) {
  auto session = open(shared_runtime(), std::string(KEIRIN_SOURCE_DIR) + "/tests/data/segments/branch.pt2",
                      options_of(When::kBackground));
  const Tensors inputs = inputs_of(*session);
  const auto first = session->call(inputs);
  ASSERT_TRUE(first.ok()) << first.status().text();
  ASSERT_TRUE(session->settle(kLong));
  const std::vector<ModelReport> reports = session->reports();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_FALSE(reports[0].segments.empty()) << explain_text(reports[0]);
  EXPECT_TRUE(session->is_decided(inputs)) << explain_text(reports[0]);
}

// A plan admits calls whose inputs are aligned as those were that it was decided with; a caller whose memory comes from
// malloc gets one too.
TEST(TimeLine, InputsThatLieOddlyGetAPlan) {
  auto session = open(shared_runtime(), data("mlp"), options_of(When::kBackground));
  TensorServices& services = shared_runtime().tensors();
  const TensorRef whole = inputs_of(*session)[0];
  std::vector<TensorSpec> specs = {spec_of(*whole)};
  const TensorRef room = *services.allocate({DType::k_f32, {1024}, {}, {}});
  for (const int64_t offset : {64, 16, 4}) {
    const TensorRef odd = *services.view(room, specs[0], offset);
    ASSERT_TRUE(services.copy(odd, whole).ok());
    ASSERT_TRUE(session->call({odd}).ok());
    ASSERT_TRUE(session->settle(kLong));
    EXPECT_TRUE(session->is_decided({odd})) << "at offset " << offset;
  }
  EXPECT_TRUE(session->is_decided({whole}));
}

class KeptAcrossProcesses : public testing::Test {
 protected:
  Options with_cache(When when) const {
    Options options = options_of(when);
    options.cache_dir = folder_.path() + "/cache";
    options.threads = 1;
    options.memory_limit = 10;
    return options;
  }
  static std::unique_ptr<Runtime> runtime_of(const Options& options) {
    auto runtime = Runtime::open(options);
    EXPECT_TRUE(runtime.ok()) << runtime.status().text();
    return runtime.ok() ? std::move(*runtime) : nullptr;
  }
  const test::TempFolder folder_;
};

// What a new process needs from the first call of a size to the plan that an earlier one chose.
TEST_F(KeptAcrossProcesses, IsUsedSoonAfterTheFirstCall) {
  for (const char* model : {"bert", "mlp"}) {
    std::string chosen;
    {
      const Options options = with_cache(When::kNow);
      const auto runtime = runtime_of(options);
      auto session = open(*runtime, zoo(model), options);
      auto report = session->compile(inputs_of(*session));
      ASSERT_TRUE(report.ok()) << report.status().text();
      ASSERT_TRUE(report->disturbed.empty()) << report->disturbed;
      chosen = report->chosen;
    }
    for (const When when : {When::kBackground, When::kNever}) {
      const uint64_t compiled = compiles_on_requests();
      const Options options = with_cache(when);
      const auto runtime = runtime_of(options);
      auto session = open(*runtime, zoo(model), options);
      const Tensors inputs = inputs_of(*session);
      const auto eager = session->call_eager(inputs);
      const Clock::time_point begin = Clock::now();
      ASSERT_TRUE(session->call(inputs).ok());
      const double first_ms = seconds(Clock::now() - begin) * 1e3;
      while (!session->is_decided(inputs) && Clock::now() - begin < kLong) std::this_thread::sleep_for(200us);
      const double ready_ms = seconds(Clock::now() - begin) * 1e3;
      ASSERT_TRUE(session->settle(kLong));
      const ModelReport report = session->reports().back();
      EXPECT_EQ(report.chosen, chosen);
      EXPECT_EQ(report.kernels_generated, 0);
      EXPECT_NE(explain_text(report).find("decided by an earlier process"), std::string::npos) << explain_text(report);
      std::printf("%s, %s: first call %.1f ms, the kept plan %.1f ms after it began (", model,
                  when == When::kNever ? "never" : "background", first_ms, ready_ms);
      for (const auto& [stage, took] : report.stage_seconds) std::printf(" %s %.1f ms", stage.c_str(), took * 1e3);
      std::printf(", in all %.1f ms)\n", report.warm_start_seconds * 1e3);
      EXPECT_LT(ready_ms, 2000) << "the time that a decision takes, not that of taking one over";
      const auto outputs = session->call(inputs);
      ASSERT_TRUE(outputs.ok());
      EXPECT_LT(difference((*outputs)[0], (*eager)[0]), 1e-3);
      EXPECT_EQ(compiles_on_requests(), compiled);
    }
  }
}

// Deciding takes turns. What only has to be taken over is over in a moment, and waits for nobody's.
TEST_F(KeptAcrossProcesses, IsTakenOverWhileOthersDecide) {
  {
    const Options options = with_cache(When::kNow);
    const auto runtime = runtime_of(options);
    auto session = open(*runtime, zoo("mlp"), options);
    auto report = session->compile(inputs_of(*session));
    ASSERT_TRUE(report.ok()) << report.status().text();
  }
  const Options options = with_cache(When::kBackground);
  const auto runtime = runtime_of(options);
  auto session = open(*runtime, zoo("mlp"), options);
  const Tensors inputs = inputs_of(*session);
  const std::lock_guard turn(runtime->decision_turn());
  ASSERT_TRUE(session->call(inputs).ok());
  EXPECT_TRUE(session->settle(20s)) << "it waits for the turn";
  EXPECT_TRUE(session->is_decided(inputs));
}

TEST_F(KeptAcrossProcesses, NeverDecidesNothingItself) {
  const Options options = with_cache(When::kNever);
  const auto runtime = runtime_of(options);
  auto session = open(*runtime, zoo("mlp"), options);
  const Tensors inputs = inputs_of(*session);
  ASSERT_TRUE(session->call(inputs).ok());
  ASSERT_TRUE(session->settle(kLong));
  ModelReport report = session->reports().back();
  EXPECT_EQ(report.chosen, "eager");
  EXPECT_EQ(report.kernels_generated, 0);
  EXPECT_EQ(report.candidates.size(), 0u) << "nothing was raced";
  EXPECT_NE(explain_text(report).find("compile is never"), std::string::npos) << explain_text(report);
  auto asked = session->compile(inputs);
  ASSERT_TRUE(asked.ok()) << asked.status().text();
  EXPECT_EQ(asked->chosen, "eager");
  EXPECT_TRUE(asked->candidates.empty());
  EXPECT_FALSE(std::filesystem::exists(options.cache_dir + "/artifact") &&
               !std::filesystem::is_empty(options.cache_dir + "/artifact"))
      << "something was compiled";
}

// The caches of other builds' artifacts are swept, and what a kept decision names is gone: it is eager's then.
TEST_F(KeptAcrossProcesses, NeverCompilesNoLostArtifact) {
  {
    Options options = with_cache(When::kNow);
    const auto runtime = runtime_of(options);
    auto session = open(*runtime, zoo("mlp"), options);
    auto report = session->compile(inputs_of(*session));
    ASSERT_TRUE(report.ok());
    if (report->plugin.empty() || report->chosen != report->steps_of)
      GTEST_SKIP() << report->chosen << " was chosen: there is no artifact to lose";
  }
  std::filesystem::remove_all(folder_.path() + "/cache/artifact");
  const Options options = with_cache(When::kNever);
  const auto runtime = runtime_of(options);
  auto session = open(*runtime, zoo("mlp"), options);
  auto report = session->compile(inputs_of(*session));
  ASSERT_TRUE(report.ok()) << report.status().text();
  EXPECT_EQ(report->chosen, "eager");
  EXPECT_EQ(report->kernels_generated, 0);
}

}  // namespace
}  // namespace keirin
