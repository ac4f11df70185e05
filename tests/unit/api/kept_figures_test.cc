// SPDX-License-Identifier: Apache-2.0
//
// A decision that another process left brings the figures of the race that made it.
#include <gtest/gtest.h>

#include <cmath>

#include "core/api/session.h"
#include "tests/support/others.h"
#include "tests/support/temp_folder.h"

namespace keirin {
namespace {

TEST(KeptDecision, BringsItsFiguresAlong) {
  const test::TempFolder folder;
  test::Others nobody;
  Options options;
  options.cache_dir = folder.path() + "/cache";
  options.race_seconds = 0.3;
  options.threads = 1;
  options.memory_limit = 10;
  options.interference = &nobody;
  const auto decide = [&](const std::string& model) {
    auto runtime = Runtime::open(options);
    EXPECT_TRUE(runtime.ok()) << runtime.status().text();
    auto session = Session::open(**runtime, std::string(KEIRIN_SOURCE_DIR) + "/bench/zoo/models/small/" + model + ".pt2", options);
    EXPECT_TRUE(session.ok()) << session.status().text();
    auto report = (*session)->compile(*(*session)->example_inputs(1));
    EXPECT_TRUE(report.ok()) << report.status().text();
    return *report;
  };
  for (const char* model : {"mlp", "lstm", "gcn"}) {
    const ModelReport made = decide(model), taken = decide(model);
    EXPECT_NE(explain_text(taken).find("decided by an earlier process"), std::string::npos) << explain_text(taken);
    EXPECT_EQ(taken.chosen, made.chosen) << model;
    EXPECT_EQ(taken.verified, made.verified) << model;
    const auto expect_near = [&](double got, double want, const char* what) {
      EXPECT_NEAR(got, want, 1e-6 * std::fabs(want)) << model << ": " << what;
    };
    expect_near(taken.chosen_ms, made.chosen_ms, "milliseconds");
    expect_near(taken.eager_ms, made.eager_ms, "milliseconds of eager");
    expect_near(static_cast<double>(taken.peak_bytes), static_cast<double>(made.peak_bytes), "peak bytes");
    expect_near(taken.eager_share, made.eager_share, "share of eager");
    expect_near(taken.max_error, made.max_error, "largest error");
    expect_near(taken.speedup, made.speedup, "speedup");
    expect_near(taken.speedup_low, made.speedup_low, "lower end of the speedup");
    expect_near(taken.speedup_high, made.speedup_high, "upper end of the speedup");
    EXPECT_GT(taken.chosen_ms, 0) << model;
    if (made.steps_of != made.chosen) continue;
    ASSERT_EQ(taken.steps.size(), made.steps.size()) << model << ": the steps of a plan that was kept are not explained";
    for (size_t i = 0; i < made.steps.size(); ++i) EXPECT_EQ(taken.steps[i].choice, made.steps[i].choice) << model << ": step " << i;
  }
}

}  // namespace
}  // namespace keirin
