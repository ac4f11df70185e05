// SPDX-License-Identifier: Apache-2.0
//
// Tables fit: columns go in the order asked for, then the last column's words are cut.
#include "core/exec/table.h"

#include <gtest/gtest.h>

#include <sstream>

namespace keirin {
namespace {

const std::vector<std::vector<std::string>> kRows = {{"model", "ms", "share", "why"},
                                                     {"mlp", "0.125", "17 %", "a reason in many words that goes on"}};

size_t longest_line(const std::string& text, const std::string& up_to = "left out") {
  size_t longest = 0;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line) && !line.starts_with(up_to);) longest = std::max(longest, line.size());
  return longest;
}

TEST(Table, IsWholeWithoutALimit) {
  EXPECT_EQ(render_table({{"a", "b"}, {"x", "1"}, {"yy", "22"}}, {}, 0), "| a  | b  |\n|----|----|\n| x  | 1  |\n| yy | 22 |\n");
  EXPECT_NE(render_table(kRows, {"share"}, 200).find("share"), std::string::npos);
}

TEST(Table, LeavesOutColumnsInTheOrderAskedForAndSaysWhich) {
  const std::string text = render_table(kRows, {"share", "ms"}, 58);
  EXPECT_LE(longest_line(text), 58u) << text;
  EXPECT_EQ(text.find("17 %"), std::string::npos) << text;
  EXPECT_NE(text.find("0.125"), std::string::npos) << text;
  EXPECT_NE(text.find("left out to fit 58 columns: share; --wide shows all"), std::string::npos) << text;
}

TEST(Table, CutsTheLastColumnWhereNothingElseMayGo) {
  const std::string text = render_table(kRows, {}, 50);
  EXPECT_LE(longest_line(text, "cut"), 50u) << text;
  EXPECT_NE(text.find(".. |"), std::string::npos) << text;
  EXPECT_NE(text.find("--wide"), std::string::npos) << text;
}

}  // namespace
}  // namespace keirin
