// SPDX-License-Identifier: Apache-2.0
//
// What a report says of a model that is compiled in segments, of the stages that took time, and where instructions would be counted; and
// progress, which is a share.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>

#include "core/api/session.h"
#include "tests/support/others.h"
#include "tests/support/shared_runtime.h"
#include "tests/support/temp_folder.h"

namespace keirin {
namespace {

struct Reported {
  ModelReport report;
  std::vector<double> done;  // as progress was told
};

Reported decide(const std::string& path, const std::string& force, bool disturbed = false) {
  test::Others nobody;
  if (disturbed) nobody.each_time = 1e12;
  Reported out;
  Options options;
  options.force = force;
  options.race_seconds = 0.05;
  options.interference = &nobody;
  options.progress = [&](const std::string&, double share, double) { out.done.push_back(share); };
  auto session = Session::open(test::shared_runtime(), std::string(KEIRIN_SOURCE_DIR) + path, options);
  EXPECT_TRUE(session.ok()) << session.status().text();
  std::vector<TensorRef> inputs;
  if (path.find("segments") == std::string::npos) {
    inputs = *(*session)->example_inputs(1);
  } else {
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{256, 64}, {1}}) {
      inputs.push_back(*test::shared_runtime().tensors().allocate({DType::k_f32, sizes, {}, {}}));
      auto* at = static_cast<float*>(inputs.back()->data());
      for (int64_t i = 0; i < inputs.back()->storage_bytes() / 4; ++i)
        at[i] = static_cast<float>(std::sin(0.7 * static_cast<double>(i) + 0.1));
    }
    static_cast<float*>(inputs[1]->data())[0] = 0;
  }
  auto report = (*session)->compile(inputs);
  EXPECT_TRUE(report.ok()) << report.status().text();
  out.report = *report;
  return out;
}

TEST(Reports, OfSegmentsThatEagerAnswers) {
  const Reported told = decide("/tests/data/segments/select.pt2", "", true);
  EXPECT_EQ(told.report.chosen, "eager");
  EXPECT_TRUE(told.report.verified) << "eager is right by definition";
  const std::string text = explain_text(told.report);
  EXPECT_NE(text.find("sizes or branches depend on data: 4 segments between 3 places"), std::string::npos) << text;
  EXPECT_EQ(told.report.eager_share, 1);
  for (const double share : told.done) EXPECT_TRUE(share >= 0 && share <= 1) << share;
}

TEST(Reports, ProgressIsAShare) {
  for (const char* path : {"/tests/data/segments/select.pt2", "/bench/zoo/models/small/mlp.pt2"}) {
    const Reported told = decide(path, "compiled");
    EXPECT_FALSE(told.done.empty()) << path;
    for (const double share : told.done) EXPECT_TRUE(share >= 0 && share <= 1) << path << ": " << share;
  }
}

TEST(Reports, WhereNobodyCountsInstructionsNothingIsChosen) {
  const test::TempFolder folder;
  const std::string path = folder.path() + "/count";
  test::spill(path, std::string(sizeof(uint64_t), '\0'));
  setenv("KEIRIN_INSTRUCTIONS", path.c_str(), 1);
  const ModelReport report = decide("/bench/zoo/models/small/mlp.pt2", "").report;
  unsetenv("KEIRIN_INSTRUCTIONS");
  EXPECT_EQ(report.fitness, "counts");
  EXPECT_EQ(report.chosen, "eager");
  ASSERT_FALSE(report.reasons.empty());
  EXPECT_NE(report.reasons[0].find("nobody counts"), std::string::npos) << report.reasons[0];
}

}  // namespace
}  // namespace keirin
