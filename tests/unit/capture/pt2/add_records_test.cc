// SPDX-License-Identifier: Apache-2.0
//
// A file with more records in extra/ is the model that it was, for this reader and by its digest; what is refused leaves no file behind.
#include "core/capture/pt2/add_records.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/capture/pt2/read_pt2.h"
#include "tests/support/temp_folder.h"

namespace keirin::pt2 {
namespace {

namespace fs = std::filesystem;
using keirin::test::slurp;
using keirin::test::spill;

const std::string kModel = std::string(KEIRIN_SOURCE_DIR) + "/tests/data/import/mlp.pt2";

class AddRecords : public testing::Test {
 protected:
  const keirin::test::TempFolder folder_;
  const std::string to_ = folder_.path() + "/m.krn";
};

TEST_F(AddRecords, TheModelIsWhatItWas) {
  const std::string body("a\0b", 3);
  ASSERT_TRUE(add_records(kModel, to_, "mine", {{"mine/0", body}, {"mine.json", "{}"}}).ok());
  const auto before = read_pt2(kModel), after = read_pt2(to_);
  ASSERT_TRUE(before.ok() && after.ok()) << after.status().text();
  EXPECT_EQ(after->extra.find("mine/0")->second, body);
  EXPECT_EQ(after->extra.find("mine.json")->second, "{}");
  EXPECT_EQ(after->extra.size(), before->extra.size() + 2);
  EXPECT_EQ(after->digest, before->digest);
  EXPECT_FALSE(after->digest.empty());
  const Program &a = before->models.begin()->second.program, &b = after->models.begin()->second.program;
  EXPECT_EQ(a.digest, b.digest);
  EXPECT_EQ(slurp(to_).substr(0, 1000), slurp(kModel).substr(0, 1000)) << "what there was lies where it lay";
}

TEST_F(AddRecords, TheSameRecordsAreTheSameBytes) {
  ASSERT_TRUE(add_records(kModel, to_, "mine", {{"mine/0", "x"}}).ok());
  ASSERT_TRUE(add_records(kModel, to_ + "2", "mine", {{"mine/0", "x"}}).ok());
  EXPECT_EQ(slurp(to_), slurp(to_ + "2"));
}

TEST_F(AddRecords, ThoseOfAnEarlierTimeAreReplacedAlsoInPlace) {
  ASSERT_TRUE(add_records(kModel, to_, "mine", {{"mine/0", "first"}, {"mine/1", "second"}}).ok());
  ASSERT_TRUE(add_records(to_, to_, "mine", {{"mine/0", "third"}}).ok());
  const auto after = read_pt2(to_);
  ASSERT_TRUE(after.ok()) << after.status().text();
  EXPECT_EQ(after->extra.find("mine/0")->second, "third");
  EXPECT_FALSE(after->extra.contains("mine/1"));
}

TEST_F(AddRecords, WhatCannotBeReadOrWrittenLeavesNothing) {
  spill(folder_.path() + "/not.pt2", "not a zip file, but long enough to hold an end record");
  EXPECT_EQ(add_records(folder_.path() + "/not.pt2", to_, "mine", {}).code(), Code::k_corrupt);
  EXPECT_FALSE(add_records(folder_.path() + "/nobody.pt2", to_, "mine", {}).ok());
  EXPECT_FALSE(add_records(kModel, folder_.path() + "/no/folder/m.krn", "mine", {}).ok());
  Limits small;
  small.json_bytes = 10;
  EXPECT_EQ(add_records(kModel, to_, "mine", {{"mine/0", "more than ten bytes"}}, small).code(), Code::k_exhausted);
  std::error_code error;
  size_t files = 0;
  for (const auto& each : fs::directory_iterator(folder_.path(), error)) files += each.path().filename() != "not.pt2";
  EXPECT_EQ(files, 0u) << "no half-written file";
}

TEST_F(AddRecords, TheDigestTellsWeightsAndRulesApart) {
  std::string bytes = slurp(kModel);
  const auto digest = [&](const std::string& file) {
    spill(to_, file);
    const auto read = read_pt2(to_);
    return read.ok() ? read->digest : read.status().text();
  };
  EXPECT_EQ(digest(bytes), read_pt2(kModel)->digest) << "wherever it lies, and whenever it was written";
  ASSERT_TRUE(add_records(kModel, to_, "keirin_init", {{"keirin_init.json", "{}"}}).ok());
  EXPECT_NE(read_pt2(to_)->digest, read_pt2(kModel)->digest);
  const auto other = read_pt2(std::string(KEIRIN_SOURCE_DIR) + "/tests/data/import/both_free.pt2");
  ASSERT_TRUE(other.ok());
  EXPECT_NE(other->digest, read_pt2(kModel)->digest);
}

}  // namespace
}  // namespace keirin::pt2
