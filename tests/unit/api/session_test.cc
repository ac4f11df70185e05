// SPDX-License-Identifier: Apache-2.0
//
// The front room end to end on a small exported model: eager from the start, a verified decision, calls from many threads while
// a decision is being made, clear endings for what is wrong.
#include "core/api/session.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/api/guard.h"

namespace keirin {
namespace {

std::string zoo(const std::string& name) { return std::string(KEIRIN_SOURCE_DIR) + "/bench/zoo/models/small/" + name + ".pt2"; }

// One runtime for the program: plugins are probed and opened once.
Runtime& runtime() {
  static std::unique_ptr<Runtime> instance = [] {
    Options options;
    options.use_cache = false;
    auto opened = Runtime::open(options);
    EXPECT_TRUE(opened.ok()) << opened.status().text();
    return std::move(*opened);
  }();
  return *instance;
}

std::unique_ptr<Session> open(const std::string& name, Options options = {}) {
  auto session = Session::open(runtime(), zoo(name), options);
  EXPECT_TRUE(session.ok()) << session.status().text();
  return session.ok() ? std::move(*session) : nullptr;
}

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
  Options options;
  options.race_seconds = 0.2;
  options.plugins = {"cuda"};  // which has nothing on the CPU: everything stays eager
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
  for (const TensorRef& input : *inputs) bad.push_back(*runtime().tensors().clone(input));
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
  auto session = Session::open(runtime(), torn.string(), {});
  std::filesystem::remove(torn);
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.status().code(), Code::k_corrupt);
  EXPECT_NE(session.status().text().find("keirin_torn_model"), std::string::npos) << session.status().text();
}

TEST(Session, ADeviceThatIsNotThereIsAnError) {
  Options options;
  options.device = "cuda:99";
  EXPECT_FALSE(Session::open(runtime(), zoo("mlp"), options).ok());
  options.device = "tpu";
  auto session = Session::open(runtime(), zoo("mlp"), options);
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.status().code(), Code::k_invalid_input);
}

}  // namespace
}  // namespace keirin
