// SPDX-License-Identifier: Apache-2.0
#include "core/base/nearest.h"

#include <gtest/gtest.h>

namespace keirin {
namespace {

TEST(Nearest, CountsLetters) {
  EXPECT_EQ(letters_apart("", ""), 0u);
  EXPECT_EQ(letters_apart("", "abc"), 3u);
  EXPECT_EQ(letters_apart("abc", ""), 3u);
  EXPECT_EQ(letters_apart("forbid", "forbid"), 0u);
  EXPECT_EQ(letters_apart("forbidd", "forbid"), 1u);
  EXPECT_EQ(letters_apart("wrn", "warn"), 1u);
  EXPECT_EQ(letters_apart("benhc", "bench"), 1u) << "two letters that changed places";
  EXPECT_EQ(letters_apart("Warn", "wARN"), 0u);
  EXPECT_EQ(letters_apart("kitten", "sitting"), 3u);
}

TEST(Nearest, NamesTheFirstOfTheNearest) {
  EXPECT_EQ(nearest_word("alow", {"warn", "allow", "forbid"}), "allow");
  EXPECT_EQ(nearest_word("x", {"a", "b"}), "a");
  EXPECT_EQ(nearest_word("x", {}), "");
}

}  // namespace
}  // namespace keirin
