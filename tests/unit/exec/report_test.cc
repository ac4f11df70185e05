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

// Which plugin has the regions of what answers; steps of a candidate that lost are nobody's.
TEST(Report, TheTableSaysWhoHasTheRegions) {
  std::vector<ModelReport> reports(3);
  const auto region = [](const std::string& plugin) {
    StepReport step;
    step.choice = plugin;
    return step;
  };
  reports[0].chosen = reports[0].steps_of = "acme/all";
  reports[0].steps = {region("acme"), region("eager"), region("acme")};
  reports[1].chosen = reports[1].steps_of = "cpu/all";
  reports[1].steps = {region("cpu")};
  reports[2].chosen = "eager";
  reports[2].steps_of = "cpu/all";
  reports[2].steps = {region("cpu")};
  const std::string table = bench_table(reports);
  std::istringstream lines(table);
  std::vector<std::string> cells;  // of the column
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::vector<std::string> row;
    for (std::string word; std::getline(words, word, '|');) row.push_back(word);
    static size_t column = 0;
    for (size_t i = 0; i < row.size(); ++i)
      if (row[i].find(" regions ") != std::string::npos) column = i;
    if (column && row.size() > column) cells.push_back(row[column].substr(row[column].find_first_not_of(' ')));
  }
  ASSERT_EQ(cells.size(), 5u) << table;
  EXPECT_EQ(cells[2], "acme 2 ") << table;
  EXPECT_EQ(cells[3], "cpu 1 ") << table;
  EXPECT_EQ(cells[4], "- ") << table;
  EXPECT_NE(table.find("regions that were chosen, by plugin: acme 2, cpu 1\n"), std::string::npos) << table;
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
