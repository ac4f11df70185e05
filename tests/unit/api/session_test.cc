// SPDX-License-Identifier: Apache-2.0
//
// The front room end to end on a small exported model: eager from the start, a verified decision, calls from many threads while
// a decision is being made, clear endings for what is wrong.
#include "core/api/session.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include <unistd.h>

#include "core/api/guard.h"
#include "core/cache/cache.h"

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
  options.plugins = {"nobody"};  // so that everything stays eager
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

struct AnyValue {
  template <class T>
  operator T() const;
};
template <class T, size_t... I>
constexpr bool takes_values(std::index_sequence<I...>) {
  return requires { T{(static_cast<void>(I), AnyValue{})...}; };
}
// Members of an aggregate: the most values that its braces take.
template <class T, size_t N = 64>
constexpr size_t count_members() {
  if constexpr (takes_values<T>(std::make_index_sequence<N>())) return N;
  else return count_members<T, N - 1>();
}

// Each option, changed alone, either opens a decision of its own or takes over what was decided without it. A new option has to be
// entered here: whether it changes what is decided is a question that its author answers.
TEST(Session, EveryOptionThatDecidesIsInTheLedgersKey) {
  struct Row {
    const char* option;
    bool decides;
    std::function<void(Options&)> change;
  };
  const std::string other_folder = std::filesystem::temp_directory_path() / "keirin_options_other";
  const Row rows[] = {
      {"device", true, nullptr},  // there is one here
      {"mode", true, [](Options& o) { o.mode = "max-autotune"; }},
      {"threads", true, [](Options& o) { o.threads = 3; }},
      {"budget_seconds", true, [](Options& o) { o.budget_seconds = 1; }},
      {"fallback", true, [](Options& o) { o.fallback = Fallback::kForbid; }},
      {"numerics", true, [](Options& o) { o.numerics = Numerics::kStrict; }},
      {"error_budget", true, [](Options& o) { o.numerics = Numerics::kFast, o.error_budget = 2e-2; }},
      {"memory_limit", true, [](Options& o) { o.memory_limit = 0.5; }},
      {"verify", false, [](Options& o) { o.verify = false; }},         // neither reads nor writes decisions
      {"use_cache", false, nullptr},                                   // the runtime's
      {"compile_in", false, [](Options& o) { o.compile_in = "process"; }},
      {"run_in", true, nullptr},                                       // the runtime's
      {"run_deadline_seconds", false, [](Options& o) { o.run_deadline_seconds = 50; }},
      {"compile_deadline_seconds", false, [](Options& o) { o.compile_deadline_seconds = 100; }},
      {"background", false, [](Options& o) { o.background = true; }},
      {"sample_rate", false, [](Options& o) { o.sample_rate = 7; }},
      {"race_seconds", true, [](Options& o) { o.race_seconds = 0.11; }},
      {"measure_again", false, [](Options& o) { o.measure_again = true; }},
      {"force", false, [](Options& o) { o.force = "eager"; }},         // neither reads nor writes decisions
      {"cache_dir", false, nullptr},
      {"dump_dir", false, [&](Options& o) { o.dump_dir = other_folder; }},
      {"repro_dir", false, [&](Options& o) { o.repro_dir = other_folder; }},
      {"plugins", true, [](Options& o) { o.plugins = {"cpu"}; }},
      {"plugin_paths", false, nullptr},                                // the plugins found are fingerprints
      {"load_libraries", false, nullptr},
      {"disabled_passes", true, [](Options& o) { o.disabled_passes = {"merge_siblings"}; }},
      {"progress", false, [](Options& o) { o.progress = [](const std::string&, double, double) {}; }},
  };
  static_assert(std::size(rows) == count_members<Options>(), "an option is missing from this table");
  const std::string folder = std::filesystem::temp_directory_path() / ("keirin_options_" + std::to_string(getpid()));
  std::filesystem::create_directories(other_folder);
  Options plain;
  plain.cache_dir = folder;
  plain.race_seconds = 0.1;
  plain.memory_limit = 10;
  plain.plugins = {"nobody"};  // what is asked is under which key a decision goes, not which it is
  auto runtime = Runtime::open(plain);
  ASSERT_TRUE(runtime.ok()) << runtime.status().text();
  const int threads = (*runtime)->tensors().num_threads();
  std::vector<TensorRef> inputs;
  const auto decisions = [&] {
    const std::vector<EntryInfo> entries = (*runtime)->cache()->list();
    return std::count_if(entries.begin(), entries.end(), [](const EntryInfo& e) { return e.kind == EntryKind::kLedger; });
  };
  const auto decide = [&](const Options& options) {
    auto session = Session::open(**runtime, zoo("mlp"), options);
    ASSERT_TRUE(session.ok()) << session.status().text();
    if (inputs.empty()) inputs = *(*session)->example_inputs(1);
    (void)(*session)->compile(inputs);  // where a fallback is forbidden it may be an error, and is remembered all the same
    (*runtime)->tensors().set_num_threads(threads);
  };
  decide(plain);
  ASSERT_EQ(decisions(), 1);
  decide(plain);
  ASSERT_EQ(decisions(), 1) << "the same options again";
  Options fast = plain;
  fast.numerics = Numerics::kFast;  // the error budget is one of these
  decide(fast);
  auto known = decisions();
  ASSERT_EQ(known, 2);
  for (const Row& row : rows) {
    if (!row.change) continue;
    Options changed = plain;
    row.change(changed);
    decide(changed);
    const bool by_fingerprint = std::string(row.option) == "threads";  // under the same key: the entry is another one then
    EXPECT_EQ(decisions() - known, row.decides && !by_fingerprint ? 1 : 0) << row.option;
    known = decisions();
  }
  std::filesystem::remove_all(folder);
  std::filesystem::remove_all(other_folder);
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
