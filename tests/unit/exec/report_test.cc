// SPDX-License-Identifier: Apache-2.0
//
// The tables that people read: their columns stand below each other, whatever is in the cells.
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

}  // namespace
}  // namespace keirin
