// SPDX-License-Identifier: Apache-2.0
//
// Models in which single roundings decide much: eager is far from fp64 and so is any plan that is right. Their regions
// are judged where little happens in each.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/api/session.h"
#include "tests/support/others.h"
#include "tests/support/shared_runtime.h"

namespace keirin {
namespace {

test::Others nobody;

std::unique_ptr<Session> open(const std::string& name, Numerics numerics = Numerics::kDefault) {
  Options options;
  options.force = "compiled";
  options.race_seconds = 0.05;
  options.interference = &nobody;
  options.sample_rate = 1;  // every call is compared
  options.numerics = numerics;
  options.use_cache = false;
  auto session = Session::open(test::shared_runtime(),
                               std::string(KEIRIN_SOURCE_DIR) + "/tests/data/sensitive/" + name + ".pt2", options);
  EXPECT_TRUE(session.ok()) << session.status().text();
  return session.ok() ? std::move(*session) : nullptr;
}

bool is_said(const ModelReport& report, const std::string& part) {
  return std::any_of(report.reasons.begin(), report.reasons.end(),
                     [&](const std::string& reason) { return reason.find(part) != std::string::npos; });
}

TEST(Iterated, IsCutUntilEagerIsNearFp64) {
  auto session = open("iterated");
  auto report = session->compile(*session->example_inputs(1));
  ASSERT_TRUE(report.ok()) << report.status().text();
  const std::string text = explain_text(*report);
  EXPECT_GT(report->eager_error, 0.25) << text;
  // A flipped route of bf16 is still within what its operators may add up to; 64 steps of chaos are not.
  EXPECT_TRUE(is_said(*report, "roundings alone move this model's answers")) << text;
  EXPECT_TRUE(is_said(*report, "regions were halved")) << text;
  EXPECT_GE(std::count_if(report->steps.begin(), report->steps.end(), [](const StepReport& s) { return s.choice == "cpu"; }), 4) << text;
}

class Sensitive : public testing::TestWithParam<const char*> {};

TEST_P(Sensitive, IsCompiledInPartsThatShowSomething) {
  auto session = open(GetParam());
  auto inputs = session->example_inputs(1);
  ASSERT_TRUE(inputs.ok()) << inputs.status().text();
  auto report = session->compile(*inputs);
  ASSERT_TRUE(report.ok()) << report.status().text();
  const std::string text = explain_text(*report);
  EXPECT_GT(report->eager_error, 1e-3) << "the model is none that this test is about\n" << text;
  EXPECT_EQ(report->plugin, "cpu") << text;
  EXPECT_TRUE(report->verified) << text;
  // Which plan answers is for the race to say; the one with products alone leaves most nodes to eager.
  if (report->chosen != "cpu/anchors_only") {
    EXPECT_GE(report->nodes_compiled * 3, report->nodes) << text;
  }
  const auto all = std::find_if(report->candidates.begin(), report->candidates.end(),
                                [](const CandidateReport& c) { return c.name == "cpu/all"; });
  ASSERT_NE(all, report->candidates.end()) << text;
  EXPECT_TRUE(all->verified) << text;
  // In service the same rule holds: what roundings explain is not taken for an error.
  for (uint64_t seed = 2; seed < 8; ++seed) {
    auto other = session->example_inputs(seed);
    ASSERT_TRUE(other.ok());
    ASSERT_TRUE(session->call(*other).ok());
  }
  for (const ModelReport& each : session->reports()) EXPECT_FALSE(is_said(each, "answered wrong in service")) << explain_text(each);
}
INSTANTIATE_TEST_SUITE_P(Models, Sensitive, testing::Values("iterated", "routed"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace keirin
