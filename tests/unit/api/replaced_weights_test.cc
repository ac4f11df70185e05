// SPDX-License-Identifier: Apache-2.0
//
// A session whose weights have other elements: its answers are the new ones at once, what was decided is decided again beside the calls
// without generating code, and what calls wrote is still there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/eager/tensor_services.h"
#include "tests/support/others.h"
#include "tests/support/shared_runtime.h"
#include "tests/support/temp_folder.h"

namespace keirin {
namespace {

const std::string kZoo = std::string(KEIRIN_SOURCE_DIR) + "/bench/zoo/models/small/";

using Values = std::vector<std::pair<std::string, TensorRef>>;

// All float weights times a number that no rounding is lost with.
Values scaled(Session& session, TensorServices& services, float by) {
  Values out;
  for (const auto& [name, tensor] : session.weights()) {
    if (tensor->dtype() != DType::k_f32) continue;
    TensorRef copy = *services.clone(tensor);
    auto* elements = static_cast<float*>(copy->data());
    for (int64_t i = 0; i < copy->storage_bytes() / 4; ++i) elements[i] *= by;
    out.emplace_back(name, std::move(copy));
  }
  return out;
}

bool near(const TensorRef& a, const TensorRef& b) {
  const auto *x = static_cast<const float*>(a->data()), *y = static_cast<const float*>(b->data());
  float largest = 0, difference = 0;
  for (int64_t i = 0; i < a->storage_bytes() / 4; ++i) {
    largest = std::max(largest, std::abs(y[i]));
    difference = std::max(difference, std::abs(x[i] - y[i]));
  }
  return largest > 0 && difference < 1e-4f * largest;
}

TEST(ReplacedWeights, ArePlannedAgainBesideCalls) {
  const test::TempFolder folder;
  Options options;
  options.cache_dir = folder.path();
  options.force = "compiled";
  options.race_seconds = 0;
  auto runtime = Runtime::open(options);
  ASSERT_TRUE(runtime.ok()) << runtime.status().text();
  TensorServices& services = (*runtime)->tensors();
  auto old = Session::open(**runtime, kZoo + "mlp.pt2", options);
  ASSERT_TRUE(old.ok()) << old.status().text();
  const auto inputs = (*old)->example_inputs(1);
  ASSERT_TRUE(inputs.ok());
  const auto decided = (*old)->compile(*inputs);
  ASSERT_TRUE(decided.ok()) << decided.status().text();
  ASSERT_GT(decided->nodes_compiled, 0);
  ASSERT_GT(decided->kernels_generated, 0);
  const auto before = (*old)->call(*inputs);
  ASSERT_TRUE(before.ok());

  auto fresh = (*old)->with_weights(scaled(**old, services, 2));
  ASSERT_TRUE(fresh.ok()) << fresh.status().text();
  const auto wanted = (*fresh)->call_eager(*inputs);
  ASSERT_TRUE(wanted.ok());
  ASSERT_FALSE(near(wanted->at(0), before->at(0)));
  ASSERT_TRUE((*fresh)->settle(std::chrono::seconds(120)));
  EXPECT_TRUE((*fresh)->is_decided(*inputs));
  const auto after = (*fresh)->call(*inputs);
  ASSERT_TRUE(after.ok()) << after.status().text();
  EXPECT_EQ((*fresh)->activity().by_plan, 1u);
  EXPECT_TRUE(near(after->at(0), wanted->at(0)));
  const std::vector<ModelReport> reports = (*fresh)->reports();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_TRUE(reports[0].verified);
  EXPECT_EQ(reports[0].kernels_generated, 0) << "code was generated again";
  EXPECT_TRUE(near((*old)->call(*inputs)->at(0), before->at(0))) << "who still calls the old session has the old weights";
}

// A race tells nothing about the values of weights: it is not run again for others, which are judged; and who comes back to weights that
// were judged before finds that.
TEST(ReplacedWeights, AreJudgedAndNotRacedAgain) {
  test::Others nobody;
  const test::TempFolder folder;
  Options options;
  options.cache_dir = folder.path() + "/cache";
  options.race_seconds = 0.2;
  options.threads = 1;
  options.memory_limit = 10;
  options.interference = &nobody;
  int races = 0, judged = 0;
  options.progress = [&](const std::string& what, double, double) {
    races += what.ends_with(": race"), judged += what.ends_with(": verify");
  };
  auto runtime = Runtime::open(options);
  ASSERT_TRUE(runtime.ok()) << runtime.status().text();
  const auto decide = [&](Session& session) {
    races = judged = 0;
    auto report = session.compile(*session.example_inputs(1));
    EXPECT_TRUE(report.ok()) << report.status().text();
    return *report;
  };
  auto old = Session::open(**runtime, kZoo + "mlp.pt2", options);
  ASSERT_TRUE(old.ok()) << old.status().text();
  const ModelReport first = decide(**old);
  if (first.chosen.rfind("cpu/", 0) != 0) GTEST_SKIP() << first.chosen << " won on this machine";
  EXPECT_GT(races, 0);
  auto fresh = (*old)->with_weights(scaled(**old, (*runtime)->tensors(), 2));
  ASSERT_TRUE(fresh.ok()) << fresh.status().text();
  (*fresh)->settle(std::chrono::seconds(120));
  const ModelReport second = decide(**fresh);
  EXPECT_EQ(races, 0) << explain_text(second);
  EXPECT_EQ(second.chosen, first.chosen);
  EXPECT_TRUE(second.verified);
  auto same = Session::open(**runtime, kZoo + "mlp.pt2", options);
  const ModelReport third = decide(**same);
  EXPECT_EQ(races + judged, 0) << "the file's own weights were judged before";
  EXPECT_EQ(third.chosen, first.chosen);
  EXPECT_EQ(third.max_error, first.max_error) << "and the figures of the judge are theirs";
}

TEST(ReplacedWeights, KeepWhatCallsWroteAndWhatIsNotNamed) {
  auto old = Session::open(test::shared_runtime(), std::string(KEIRIN_SOURCE_DIR) + "/tests/data/pt2/counter.pt2", {});
  ASSERT_TRUE(old.ok()) << old.status().text();
  TensorServices& services = test::shared_runtime().tensors();
  const auto inputs = (*old)->example_inputs(1);
  ASSERT_TRUE(inputs.ok());
  const auto number = [&](const std::unique_ptr<Session>& session, const std::string& name) {
    for (const auto& [each, tensor] : session->weights())
      if (each == name) return *static_cast<const float*>(tensor->data());
    return -1.0f;
  };
  ASSERT_TRUE((*old)->call(*inputs).ok());
  ASSERT_TRUE((*old)->call(*inputs).ok());
  ASSERT_EQ(number(*old, "n"), 2);
  TensorRef seven = *services.allocate({DType::k_f32, {4}, {1}, {}});
  for (int i = 0; i < 4; ++i) static_cast<float*>(seven->data())[i] = 7;
  auto fresh = (*old)->with_weights({{"k", seven}});
  ASSERT_TRUE(fresh.ok()) << fresh.status().text();
  static_cast<float*>(seven->data())[0] = 0;  // the caller's again
  EXPECT_EQ(number(*fresh, "k"), 7);
  EXPECT_EQ(number(*old, "k"), 1);
  ASSERT_TRUE((*fresh)->call(*inputs).ok());
  EXPECT_EQ(number(*fresh, "n"), 3);
  EXPECT_EQ(number(*old, "n"), 3) << "one state";
}

TEST(ReplacedWeights, StayTied) {
  auto old = Session::open(test::shared_runtime(), std::string(KEIRIN_SOURCE_DIR) + "/tests/data/pt2/tied.pt2", {});
  ASSERT_TRUE(old.ok()) << old.status().text();
  TensorServices& services = test::shared_runtime().tensors();
  TensorRef value = *services.allocate({DType::k_f32, {6, 4}, {4, 1}, {}});
  for (int i = 0; i < 24; ++i) static_cast<float*>(value->data())[i] = static_cast<float>(i);
  auto fresh = (*old)->with_weights({{"e.weight", value}});
  ASSERT_TRUE(fresh.ok()) << fresh.status().text();
  int tied = 0;
  for (const auto& [name, tensor] : (*fresh)->weights())
    if (name == "e.weight" || name == "o.weight") tied += static_cast<const float*>(tensor->data())[23] == 23;
  EXPECT_EQ(tied, 2);
}

}  // namespace
}  // namespace keirin
