// SPDX-License-Identifier: Apache-2.0
//
// The tables that people read: their columns stand below each other, whatever is in the cells. A count is never shown as a time.
#include "core/exec/report.h"

#include <gtest/gtest.h>

#include <sstream>

namespace keirin {
namespace {

TEST(Report, ColumnsStandBelowEachOther) {
  std::vector<ModelReport> reports(3);
  reports[0].model = "a";
  reports[1].model = "a_model_with_a_long_name";
  reports[2].model = "b";
  reports[2].eager_ms = 123456.789;
  reports[1].chosen = "cpu";
  for (const std::string& table : {bench_table(reports), costs_table(reports)}) {
    std::istringstream lines(table);
    std::vector<size_t> bars;  // of the first line
    int rows = 0;
    for (std::string line; std::getline(lines, line);) {
      if (line.empty() || line[0] != '|') continue;
      std::vector<size_t> found;
      for (size_t i = 0; i < line.size(); ++i)
        if (line[i] == '|') found.push_back(i);
      if (rows++ == 0) bars = found;
      EXPECT_EQ(found, bars) << table;
    }
    EXPECT_EQ(rows, 5) << table;  // the head, the line below it, and one row a model
  }
}

TEST(Report, CountsAreNoTimes) {
  ModelReport report;
  report.chosen_ms = report.eager_ms = 11.106796;
  report.candidates.resize(1);
  report.candidates[0].milliseconds = 11.106796;
  report.steps.resize(1);
  report.steps[0].microseconds = 37.371;
  EXPECT_EQ(to_json(report)["eager_ms"], 11.106796);
  EXPECT_EQ(to_json(report)["fitness"], "time");
  EXPECT_TRUE(to_json(report)["steps"][0]["instructions"].is_null());
  EXPECT_NE(explain_text(report).find("11.107 ms"), std::string::npos) << explain_text(report);
  report.fitness = "counts";
  const nlohmann::json told = to_json(report);
  EXPECT_EQ(told["fitness"], "counts");
  for (const char* field : {"eager_ms", "chosen_ms", "compiled_ms", "eager_replay_ms"}) EXPECT_TRUE(told[field].is_null()) << field;
  EXPECT_TRUE(told["candidates"][0]["ms"].is_null());
  EXPECT_EQ(told["candidates"][0]["instructions"], 11106796);
  EXPECT_TRUE(told["steps"][0]["us"].is_null());
  EXPECT_EQ(told["steps"][0]["instructions"], 37371);
  EXPECT_TRUE(told["steps"][0]["instructions_in_eager"].is_null());
  report.steps[0].in_eager = 40.004;
  EXPECT_EQ(to_json(report)["steps"][0]["instructions_in_eager"], 40004);
  EXPECT_NE(explain_text(report).find("11106796 instructions"), std::string::npos) << explain_text(report);
  EXPECT_EQ(explain_text(report).find(" ms"), std::string::npos) << explain_text(report);
}

}  // namespace
}  // namespace keirin
