// SPDX-License-Identifier: Apache-2.0
//
// The front room end to end on a small exported model: eager from the start, a verified decision, calls from many threads while
// a decision is being made, clear endings for what is wrong.
#include "core/api/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/api/guard.h"
#include "core/host/plugins.h"
#include "tests/support/others.h"
#include "tests/support/shared_runtime.h"

namespace keirin {
namespace {

std::string zoo(const std::string& name) { return std::string(KEIRIN_SOURCE_DIR) + "/bench/zoo/models/small/" + name + ".pt2"; }

using test::shared_runtime;

// Races here are told that they have the machine alone: other tests run beside them.
test::Others nobody;

std::unique_ptr<Session> open(const std::string& name, Options options = {}) {
  if (!options.interference) options.interference = &nobody;
  auto session = Session::open(shared_runtime(), zoo(name), options);
  EXPECT_TRUE(session.ok()) << session.status().text();
  return session.ok() ? std::move(*session) : nullptr;
}

// The name of a plugin that compiles nothing for the CPU, so that everything stays eager and deciding is quick; empty in a build
// without one.
std::string plugin_of_gpus() {
  for (const PluginReport& report : shared_runtime().plugins().reports())
    if (report.name == "cuda" || report.name == "rocm") return report.name;
  return {};
}
#define SKIP_WITHOUT_A_PLUGIN_OF_GPUS() \
  if (plugin_of_gpus().empty()) GTEST_SKIP() << "this build has no plugin of GPUs to leave everything eager with"

double largest_difference(const TensorRef& a, const TensorRef& b) {
  EXPECT_EQ(a->dtype(), DType::k_f32);
  int64_t n = 1;
  for (int64_t d = 0; d < a->rank(); ++d) n *= a->sizes()[d];
  const auto *x = static_cast<const float*>(a->data()), *y = static_cast<const float*>(b->data());
  double worst = 0;
  for (int64_t i = 0; i < n; ++i) worst = std::max(worst, std::fabs(static_cast<double>(x[i]) - y[i]));
  return worst;
}

TEST(Session, AnswersEagerlyBeforeAnythingIsDecided) {
  auto session = open("mlp");
  auto inputs = session->example_inputs(1);
  ASSERT_TRUE(inputs.ok()) << inputs.status().text();
  auto once = session->call(*inputs), eager = session->call_eager(*inputs);
  ASSERT_TRUE(once.ok()) << once.status().text();
  EXPECT_EQ(largest_difference((*once)[0], (*eager)[0]), 0);
}

TEST(Session, DecidesAVerifiedPlanAndReportsIt) {
  Options options;
  options.force = "compiled";
  auto session = open("mlp", options);
  auto inputs = session->example_inputs(1);
  ASSERT_TRUE(inputs.ok());
  auto report = session->compile(*inputs);
  ASSERT_TRUE(report.ok()) << report.status().text();
  EXPECT_TRUE(report->verified) << explain_text(*report);
  EXPECT_GT(report->nodes, 0);
  EXPECT_GT(report->eager_ms, 0);
  auto compiled = session->call(*inputs), eager = session->call_eager(*inputs);
  ASSERT_TRUE(compiled.ok()) << compiled.status().text();
  EXPECT_LT(largest_difference((*compiled)[0], (*eager)[0]), 1e-4);
}

TEST(Session, FallbackIsWarnedOfOrForbidden) {
  SKIP_WITHOUT_A_PLUGIN_OF_GPUS();
  Options options;
  options.race_seconds = 0.2;
  options.plugins = {plugin_of_gpus()};
  options.fallback = Fallback::kWarn;
  auto session = open("mlp", options);
  auto inputs = session->example_inputs(1);
  auto warned = session->compile(*inputs);
  ASSERT_TRUE(warned.ok()) << warned.status().text();
  EXPECT_EQ(warned->eager_share, 1);
  ASSERT_FALSE(warned->reasons.empty());
  EXPECT_EQ(warned->reasons[0].rfind("warning: 5 of 5 operators run eagerly, 100 %", 0), 0u) << warned->reasons[0];

  options.fallback = Fallback::kForbid;
  session = open("mlp", options);
  EXPECT_EQ(session->compile(*inputs).status().code(), Code::k_unsupported);
  EXPECT_TRUE(session->call(*inputs).ok()) << "calls are answered all the same";

  options.plugins.clear();
  options.force = "compiled";
  session = open("mlp", options);
  auto whole = session->compile(*inputs);
  ASSERT_TRUE(whole.ok()) << whole.status().text();
  EXPECT_EQ(whole->eager_share, 0);
}

// Also not where the size has kernels of another structure.
TEST(Session, AFurtherSizeGeneratesNoCode) {
  Options options;
  options.race_seconds = 0.2;
  auto session = open("bert_dynamic", options);
  int64_t rows = 0;
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{2, 4}, {3, 6}, {1, 5}, {4, 4}}) {
    auto inputs = session->example_inputs(1, sizes);
    ASSERT_TRUE(inputs.ok()) << inputs.status().text();
    auto report = session->compile(*inputs);
    ASSERT_TRUE(report.ok()) << report.status().text();
    if (rows++ == 0) EXPECT_GT(report->kernels_generated, 0);
    else EXPECT_EQ(report->kernels_generated, 0) << sizes[0] << "," << sizes[1];
  }
}

// What says of itself that it was disturbed shows no figure, and eager answers.
TEST(Session, ADisturbedRaceShowsNoFigure) {
  test::Others busy;
  busy.each_time = 1e12;
  Options options;
  options.race_seconds = 0.5;
  options.interference = &busy;
  auto session = open("mlp", options);
  auto inputs = session->example_inputs(1);
  ASSERT_TRUE(inputs.ok());
  auto report = session->compile(*inputs);
  ASSERT_TRUE(report.ok()) << report.status().text();
  EXPECT_NE(report->disturbed.find("others had the processor"), std::string::npos) << explain_text(*report);
  EXPECT_EQ(report->chosen, "eager");
  EXPECT_EQ(report->speedup, 1);
  EXPECT_EQ(report->eager_ms, 0);
  EXPECT_EQ(report->compiled_ms, 0);
  EXPECT_EQ(report->pays_back_after_calls, 0);
  EXPECT_GT(report->nodes_compiled, 0) << "what could be compiled is known all the same";
  EXPECT_NE(report->reasons.at(0).find("the race was disturbed"), std::string::npos) << report->reasons.at(0);
  const nlohmann::json json = to_json(*report);
  EXPECT_TRUE(json.at("speedup").is_null());
  EXPECT_FALSE(json.at("disturbed").get<std::string>().empty());
  for (const nlohmann::json& candidate : json.at("candidates")) {
    EXPECT_EQ(candidate.at("ms"), 0) << candidate;
    EXPECT_NE(candidate.at("reason"), "slower") << candidate;
  }
  const std::string table = bench_table({*report, *report});
  EXPECT_NE(table.find(" disturbed |"), std::string::npos) << table;
  EXPECT_EQ(table.find("geomean"), std::string::npos) << table;
  EXPECT_NE(table.find("disturbed: 2 of 2 rows"), std::string::npos) << table;
  EXPECT_NE(explain_text(*report).find("the race was disturbed"), std::string::npos);
}

// Asked for, the report says what the machine allows for the call and for each step. Other reports say nothing, and measure nothing.
TEST(Session, TheMachinesLimitIsInTheReportWhereItIsAskedFor) {
  for (const bool asked : {true, false}) {
    Options options;
    options.race_seconds = 1;
    options.force = "compiled";
    options.limits = asked;
    test::Others nobody;
    options.interference = &nobody;
    auto session = open("mlp", options);
    auto report = session->compile(*session->example_inputs(1));
    ASSERT_TRUE(report.ok()) << report.status().text();
    ASSERT_FALSE(report->steps.empty());
    if (!report->disturbed.empty()) GTEST_SKIP() << "the machine is not quiet: " << report->disturbed;
    EXPECT_EQ(report->limit_ms > 0, asked) << explain_text(*report);
    for (const StepReport& step : report->steps) EXPECT_EQ(step.limit_us > 0, asked) << step.name;
    EXPECT_EQ(explain_text(*report).find("the machine's limit") != std::string::npos, asked);
    EXPECT_EQ(to_json(*report)["share_of_limit"].is_null(), !asked);
  }
}

// A forced plan has the figures of a race, and the steps say whose they are.
TEST(Session, AForcedPlanIsMeasured) {
  Options options;
  options.race_seconds = 2;
  options.force = "compiled";
  test::Others unsure;  // others took nothing, but steady is what shows to be steady
  unsure.all = false;
  options.interference = &unsure;
  auto session = open("mlp", options);
  auto inputs = session->example_inputs(1);
  auto report = session->compile(*inputs);
  ASSERT_TRUE(report.ok()) << report.status().text();
  ASSERT_FALSE(report->plugin.empty());
  if (!report->disturbed.empty()) GTEST_SKIP() << "the machine is not quiet: " << report->disturbed;
  for (const CandidateReport& c : report->candidates)
    if (c.name == report->chosen) {
      EXPECT_GE(c.blocks, 10) << explain_text(*report);
    }
  EXPECT_LT(report->speedup_low, report->speedup_high);
  EXPECT_EQ(report->steps_of, report->chosen);
  const auto baseline = std::find_if(report->candidates.begin(), report->candidates.end(),
                                     [](const CandidateReport& c) { return c.reason == "baseline"; });
  ASSERT_NE(baseline, report->candidates.end());
  const double ratio = baseline->milliseconds / report->chosen_ms;
  EXPECT_NEAR(std::log(ratio / report->speedup), 0, 0.16) << explain_text(*report);
}

// No plan is built to be dropped where eager or its replay is asked for by name.
TEST(Session, AReplayAskedForByNameBuildsNoPlan) {
  Options options;
  options.only_candidate = "replay";
  auto session = open("mlp", options);
  auto inputs = session->example_inputs(1);
  auto report = session->compile(*inputs);
  ASSERT_TRUE(report.ok()) << report.status().text();
  EXPECT_EQ(report->chosen, "replay");
  EXPECT_TRUE(report->verified) << explain_text(*report);
  for (const CandidateReport& c : report->candidates) EXPECT_EQ(c.plugin, "") << c.name;
}

TEST(Session, SizesAreNamedAndCheckedAgainstTheExport) {
  Options options;
  options.force = "eager";
  options.race_seconds = 0.1;
  auto session = open("bert_dynamic", options);
  auto inputs = session->example_inputs(1, {3, 6});
  ASSERT_TRUE(inputs.ok()) << inputs.status().text();
  auto report = session->compile(*inputs);
  ASSERT_TRUE(report.ok()) << report.status().text();
  ASSERT_EQ(report->sizes.size(), 2u);
  EXPECT_EQ(report->sizes[0].value, 3);
  EXPECT_EQ(report->sizes[1].value, 6);
  EXPECT_EQ(model_at_sizes(*report), "bert_dynamic at 3,6");
  EXPECT_NE(report->sizes[0].name.find("[0]"), std::string::npos) << report->sizes[0].name;
  ASSERT_EQ(report->inputs.size(), inputs->size());
  EXPECT_EQ(report->inputs[0], "i64[3,6]");
  const nlohmann::json json = to_json(*report);
  EXPECT_EQ(json.at("sizes").at(1).at("value"), 6);
  ASSERT_GT(report->sizes[0].max, 0) << "the export has a limit";
  const auto refused = [&](const std::vector<int64_t>& sizes, const std::string& words) {
    const Status status = session->example_inputs(1, sizes).status();
    EXPECT_EQ(status.code(), Code::k_invalid_input);
    EXPECT_NE(status.text().find(words), std::string::npos) << status.text();
  };
  refused({report->sizes[0].max + 1, 6}, "from " + std::to_string(report->sizes[0].min) + " to " + std::to_string(report->sizes[0].max));
  refused({3, 6, 9}, "3 sizes were given, the export left 2 free");
  refused({-1}, "is outside of what the export allows");
  auto fixed = open("mlp", options);
  EXPECT_TRUE(fixed->example_inputs(1, {}).ok());
  EXPECT_NE(fixed->example_inputs(1, {4}).status().text().find("the export left 0 free"), std::string::npos);
}

// Of a file in which a size stands only as a multiple of a symbol, what it is a multiple of is free.
TEST(Session, WhatASizeIsAMultipleOfIsFree) {
  Options options;
  options.only_candidate = "eager";
  auto session = open("unet_dynamic", options);
  auto inputs = session->example_inputs(1, {6, 4});
  ASSERT_TRUE(inputs.ok()) << inputs.status().text();
  EXPECT_EQ(spec_text(spec_of(*(*inputs)[0])), "f32[1,4,24,16]");
  auto report = session->compile(*inputs);
  ASSERT_TRUE(report.ok()) << report.status().text();
  ASSERT_EQ(report->sizes.size(), 2u);
  EXPECT_EQ(report->sizes[0].name, "x[2]/4");
  EXPECT_EQ(report->sizes[0].value, 6);
  EXPECT_EQ(report->sizes[1].name, "x[3]/4");
  EXPECT_EQ(report->sizes[1].value, 4);
  EXPECT_EQ(spec_text(spec_of(*(*session->example_inputs(1))[0])), "f32[1,4,32,32]") << "the export's own";
  EXPECT_FALSE(session->example_inputs(1, {6, 4, 2}).ok());
}

TEST(Session, TheOldestDecisionGoesAndItsReportSaysSo) {
  SKIP_WITHOUT_A_PLUGIN_OF_GPUS();
  Options options;
  options.race_seconds = 0.05;
  options.plugins = {plugin_of_gpus()};
  options.max_shapes = 2;
  auto session = open("bert_dynamic", options);
  const std::vector<std::vector<int64_t>> sizes = {{2, 4}, {3, 6}, {4, 8}};
  for (const std::vector<int64_t>& each : sizes) ASSERT_TRUE(session->compile(*session->example_inputs(1, each)).ok());
  const std::vector<ModelReport> reports = session->reports();
  ASSERT_EQ(reports.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const std::string text = explain_text(reports[i]);
    EXPECT_EQ(text.find("forgotten: 2 decisions are kept") != std::string::npos, i == 0) << text;
  }
  ASSERT_TRUE(session->call(*session->example_inputs(1, sizes[0])).ok());
  EXPECT_EQ(session->reports().back().calls_unadmitted, 1u);
  ASSERT_TRUE(session->call(*session->example_inputs(1, sizes[2])).ok());
  EXPECT_EQ(session->reports().back().calls_unadmitted, 1u);
}

TEST(Session, NoPluginIsTheFirstReason) {
  SKIP_WITHOUT_A_PLUGIN_OF_GPUS();
  Options options;
  options.race_seconds = 0.05;
  options.plugins = {plugin_of_gpus()};
  auto session = open("mlp", options);
  auto report = session->compile(*session->example_inputs(1));
  ASSERT_TRUE(report.ok()) << report.status().text();
  EXPECT_EQ(report->reasons.at(0).rfind("no plugin compiles for cpu: ", 0), 0u) << report->reasons.at(0);
  EXPECT_NE(report->reasons.at(0).find("was not asked for by name"), std::string::npos) << report->reasons.at(0);
  // Of so small a model eager's replay may be faster: it is the first reason of whichever answers.
  EXPECT_NE(bench_table({*report}).find(report->chosen + ": no plugin compiles for cpu"), std::string::npos) << bench_table({*report});
  options.fallback = Fallback::kWarn;
  report = open("mlp", options)->compile(*session->example_inputs(1));
  ASSERT_TRUE(report.ok());
  EXPECT_NE(report->reasons.at(0).find("of a call's time: no plugin compiles for cpu"), std::string::npos) << report->reasons.at(0);
}

TEST(Session, OtherShapesAreAnsweredEagerly) {
  auto session = open("resnet50_dynamic");
  auto one = session->example_inputs(1, {2}), other = session->example_inputs(1, {3});
  ASSERT_TRUE(one.ok() && other.ok());
  auto outputs = session->call(*other);
  ASSERT_TRUE(outputs.ok()) << outputs.status().text();
  EXPECT_EQ((*outputs)[0]->sizes()[0], 3);
}

// The caller's mistakes are his own: he gets eager's error, and the others keep their plan.
TEST(Session, ABadIndexEndsInEagersErrorAndCostsNoPlan) {
  Options options;
  options.force = "compiled";
  options.race_seconds = 1;
  auto session = open("dlrm", options);
  auto inputs = session->example_inputs(1);
  ASSERT_TRUE(inputs.ok()) << inputs.status().text();
  const auto report = session->compile(*inputs);
  ASSERT_TRUE(report.ok()) << report.status().text();
  ASSERT_FALSE(report->plugin.empty()) << explain_text(*report);
  std::vector<TensorRef> bad;
  for (const TensorRef& input : *inputs) bad.push_back(*shared_runtime().tensors().clone(input));
  int spoilt = 0;
  for (const TensorRef& t : bad)
    if (t->dtype() == DType::k_i64 && spoilt++ == 0) static_cast<int64_t*>(t->data())[0] = int64_t{1} << 40;
  ASSERT_GT(spoilt, 0);
  const auto eager = session->call_eager(bad);
  ASSERT_FALSE(eager.ok());
  for (int i = 0; i < 2 * CircuitBreaker::kFailures; ++i) {
    const auto outputs = session->call(bad);
    ASSERT_FALSE(outputs.ok());
    EXPECT_EQ(outputs.status().message().what, eager.status().message().what);
  }
  const auto outputs = session->call(*inputs);
  ASSERT_TRUE(outputs.ok()) << outputs.status().text();
  EXPECT_LT(largest_difference((*outputs)[0], (*session->call_eager(*inputs))[0]), 1e-4);
  const std::string text = explain_text(session->reports().back());
  EXPECT_EQ(text.find("eager answers for a while"), std::string::npos) << text;
}

// A thread's first call runs on as many threads as all others do, also inside of libraries: its sums have the same bits.
TEST(Session, TheFirstCallOfAThreadIsLikeAllOthers) {
  const int threads = shared_runtime().tensors().num_threads();
  shared_runtime().tensors().set_num_threads(1);
  Options options;
  options.force = "compiled";
  options.race_seconds = 0.1;
  auto session = open("gcn", options);
  auto inputs = session->example_inputs(1);
  ASSERT_TRUE(session->compile(*inputs).ok());
  const auto expected = session->call(*inputs);
  ASSERT_TRUE(expected.ok());
  for (int i = 0; i < 3; ++i)
    std::thread([&] {
      for (int call = 0; call < 2; ++call) {
        const auto outputs = session->call(*inputs);
        ASSERT_TRUE(outputs.ok());
        EXPECT_EQ(largest_difference((*outputs)[0], (*expected)[0]), 0) << "call " << call << " of a thread";
      }
    }).join();
  shared_runtime().tensors().set_num_threads(threads);
}

TEST(Session, EightThreadsCallWhileADecisionIsMade) {
  auto session = open("mlp");
  auto inputs = session->example_inputs(1);
  ASSERT_TRUE(inputs.ok());
  auto expected = session->call_eager(*inputs);
  ASSERT_TRUE(expected.ok());
  std::atomic<bool> stop{false};
  std::atomic<int> calls{0}, failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      while (!stop) {
        auto outputs = session->call(*inputs);
        if (!outputs.ok() || largest_difference((*outputs)[0], (*expected)[0]) > 1e-4) ++failures;
        ++calls;
      }
    });
  auto report = session->compile(*inputs);
  for (int i = 0; i < 100; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(report.ok()) << report.status().text();
  EXPECT_EQ(failures, 0);
  EXPECT_GT(calls, 8);
}

TEST(Session, ATornFileIsRefusedWithItsName) {
  std::filesystem::path torn = std::filesystem::temp_directory_path() / "keirin_torn_model.pt2";
  std::ifstream whole(zoo("mlp"), std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(whole)), {});
  std::ofstream(torn, std::ios::binary) << bytes.substr(0, bytes.size() / 2);
  auto session = Session::open(shared_runtime(), torn.string(), {});
  std::filesystem::remove(torn);
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.status().code(), Code::k_corrupt);
  EXPECT_NE(session.status().text().find("keirin_torn_model"), std::string::npos) << session.status().text();
}

TEST(Session, ADeviceThatIsNotThereIsAnError) {
  Options options;
  options.device = "cuda:99";
  EXPECT_FALSE(Session::open(shared_runtime(), zoo("mlp"), options).ok());
  options.device = "tpu";
  auto session = Session::open(shared_runtime(), zoo("mlp"), options);
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.status().code(), Code::k_invalid_input);
}

}  // namespace
}  // namespace keirin
