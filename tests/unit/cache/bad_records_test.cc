// SPDX-License-Identifier: Apache-2.0
//
// The quarantine survives a restart, a forged or torn record does not, and forgiving empties it.
#include "core/cache/bad_records.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "tests/support/mutants.h"
#include "tests/support/temp_folder.h"

namespace keirin {
namespace {

namespace fs = std::filesystem;

class BadRecords : public testing::Test {
 protected:
  void SetUp() override {
    cache_ = open();
  }
  std::unique_ptr<Cache> open() {
    CacheOptions options;
    options.dir = dir_ + "/c";
    return std::make_unique<Cache>(std::move(options));
  }
  static BadRecord record(const std::string& plugin, const std::string& region) {
    return {plugin, "guid of " + plugin, "1", region, "krn.exec.run", "died: \"\xff\n", {}};
  }
  test::TempFolder folder_;
  const std::string dir_ = folder_.path();
  std::unique_ptr<Cache> cache_;
};

TEST_F(BadRecords, AreThereAtTheNextStart) {
  open_quarantine(cache_.get())->add(record("acme", std::string(64, 'a')));
  cache_ = open();
  const std::vector<BadRecord> kept = read_bad_records(*cache_);
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0].plugin, "acme");
  EXPECT_EQ(kept[0].region, std::string(64, 'a'));
  EXPECT_EQ(kept[0].what, "died: \"\xef\xbf\xbd\n") << "bytes that are not text are replaced";
  EXPECT_EQ(open_quarantine(cache_.get())->of_plugin("guid of acme", "1").size(), 1u);
}

TEST_F(BadRecords, AreForgivenByNameOrAltogether) {
  for (const char* region : {"a", "b"}) EXPECT_TRUE(publish_bad_record(*cache_, record("acme", region)));
  EXPECT_TRUE(publish_bad_record(*cache_, record("other", "a")));
  EXPECT_EQ(forgive(*cache_, "acme"), 2u);
  EXPECT_EQ(read_bad_records(*cache_).size(), 1u);
  EXPECT_EQ(forgive(*cache_, ""), 1u);
  EXPECT_TRUE(read_bad_records(*cache_).empty());
}

TEST_F(BadRecords, AHangOfAnEarlierBootIsForgotten) {
  BadRecord hung = record("acme", "a");
  hung.boot = "another boot";
  EXPECT_TRUE(publish_bad_record(*cache_, hung));
  EXPECT_TRUE(read_bad_records(*cache_).empty());
}

TEST_F(BadRecords, ADamagedRecordCountsAsNone) {
  EXPECT_TRUE(publish_bad_record(*cache_, record("acme", "a")));
  for (const auto& entry : fs::directory_iterator(dir_ + "/c/bad"))
    std::ofstream(entry.path(), std::ios::app | std::ios::binary) << "x";
  EXPECT_TRUE(read_bad_records(*cache_).empty());
  EXPECT_EQ(cache_->check().size(), 1u);
}

// Ours by its hash, yet not what this version writes.
TEST_F(BadRecords, WhatIsNoRecordAccusesNobody) {
  EXPECT_TRUE(publish_bad_record(*cache_, record("acme", "a")));
  const std::string good = cache_->bodies(EntryKind::kBad).at(0);
  cache_ = nullptr;
  fs::remove_all(dir_ + "/c");
  cache_ = open();
  size_t read = 0;
  test::MalformedInputs inputs;
  inputs.try_mutants(good, 300, [&](const std::string& mutant) {
    ASSERT_TRUE(cache_->publish(EntryKind::kBad, CacheKey().add("k", "v"), mutant));
    const std::vector<BadRecord> records = read_bad_records(*cache_);
    ASSERT_LE(records.size(), 1u);
    read += records.size();
  });
  EXPECT_GT(read, 0u);
  EXPECT_LT(read, 300u);
}

TEST_F(BadRecords, WithoutACacheTheProcessStillRemembers) {
  const auto quarantine = open_quarantine(nullptr);
  quarantine->add(record("acme", "a"));
  EXPECT_EQ(quarantine->of_plugin("guid of acme", "1").size(), 1u);
}

}  // namespace
}  // namespace keirin
