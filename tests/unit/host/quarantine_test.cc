// SPDX-License-Identifier: Apache-2.0
//
// What the quarantine remembers, and what the journal of a dead process tells the next one.
#include "core/host/guard/quarantine.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/host/guard/journal.h"
#include "tests/support/temp_folder.h"

namespace keirin {
namespace {

namespace fs = std::filesystem;

Hash region(uint8_t n) {
  Hash hash{};
  hash[0] = n;
  return hash;
}
BadRecord record(const std::string& build, uint8_t n) {
  return {"acme", "guid", build, hex(region(n)), "krn.compile.compile", "crashed", {}};
}

TEST(Quarantine, HoldsAPairAndNotItsNeighbours) {
  int kept = 0;
  Quarantine quarantine({}, [&](const BadRecord&) { ++kept; });
  quarantine.add(record("1", 1));
  quarantine.add(record("1", 1));
  EXPECT_EQ(kept, 1) << "a pair is kept once";
  EXPECT_EQ(*quarantine.why_not("guid", "1", region(1)), "quarantined: acme: crashed on this region (010000000000) before");
  EXPECT_FALSE(quarantine.why_not("guid", "1", region(2)));
  EXPECT_FALSE(quarantine.why_not("guid", "2", region(1))) << "another build may try";
  EXPECT_FALSE(quarantine.why_not("other", "1", region(1)));
  quarantine.add(record("1", 2), false);
  EXPECT_EQ(kept, 1);
  EXPECT_TRUE(quarantine.why_not("guid", "1", region(2)));
}

TEST(Quarantine, ThreeRegionsAreThePlugin) {
  Quarantine quarantine({record("1", 1), record("1", 2)});
  EXPECT_FALSE(quarantine.why_not("guid", "1"));
  quarantine.add(record("1", 3));
  EXPECT_TRUE(quarantine.why_not("guid", "1"));
  EXPECT_TRUE(quarantine.why_not("guid", "1", region(9)));
  EXPECT_FALSE(quarantine.why_not("guid", "2"));
}

// What the machine did: it is over after a while, and nothing to hold against the plugin.
TEST(Quarantine, ARestEndsAndGrowsWithWhatGoesWrongAgain) {
  using namespace std::chrono_literals;
  Quarantine::Clock::time_point now{};
  int kept = 0;
  Quarantine quarantine({}, [&](const BadRecord&) { ++kept; }, [&now] { return now; });
  const auto rests = [&] { return quarantine.why_rests("guid", "1", region(1)).has_value(); };
  for (uint8_t n = 1; n < 6; ++n) quarantine.rest(record("1", n));
  EXPECT_EQ(quarantine.times_rested(), 5u);
  EXPECT_FALSE(quarantine.why_not("guid", "1")) << "the plugin is not to blame, for however many";
  EXPECT_FALSE(quarantine.why_not("guid", "1", region(1)));
  EXPECT_EQ(*quarantine.why_rests("guid", "1", region(1)), "at rest: acme: crashed on this region (010000000000) a moment ago");
  EXPECT_EQ(quarantine.times_rested(), 5u) << "to ask is not to be refused a decision";
  quarantine.note_refusal();
  EXPECT_EQ(quarantine.times_rested(), 6u);
  EXPECT_FALSE(quarantine.why_rests("guid", "2", region(1)));
  quarantine.rest(record("1", 1));
  now += 999ms;
  EXPECT_TRUE(rests());
  now += 1ms;
  EXPECT_FALSE(rests()) << "two that fail at once are one failure";
  for (const auto length : {2s, 4s, 8s}) {
    quarantine.rest(record("1", 1));
    now += length - 1s;
    EXPECT_TRUE(rests());
    now += 1s;
    EXPECT_FALSE(rests());
  }
  for (int i = 0; i < 20; ++i) {
    quarantine.rest(record("1", 1));
    const auto begin = now;
    while (rests() && now - begin <= 1h) now += 1s;
    EXPECT_LE(now - begin, 1h) << "never for good";
  }
  now += 1h;
  quarantine.rest(record("1", 1));
  now += 1s;
  EXPECT_FALSE(rests()) << "it went well for as long as it had rested";
  EXPECT_EQ(kept, 0);
}

TEST(Quarantine, ADeathBeforeAnyRegionIsThePlugin) {
  Quarantine quarantine({{"acme", "guid", "1", "", "krn.plugin.initialize", "took its process down", {}}});
  EXPECT_TRUE(quarantine.why_not("guid", "1"));
}

class JournalTest : public testing::Test {
 protected:
  // A process that dies inside `calls` calls.
  void die_inside(int calls) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      auto journal = Journal::open(dir_);
      if (!journal) ::_exit(3);
      for (int i = 0; i < calls; ++i) new Journal::Entry(journal, "acme", "guid", "1", "krn.exec.run", region(static_cast<uint8_t>(i + 1)));
      { const Journal::Entry over(journal, "good", "guid2", "1", "krn.exec.run", region(99)); }
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    ASSERT_EQ(status, 0);
  }
  std::vector<std::string> files() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_ + "/journal"))
      if (entry.path().filename() != "lock") names.push_back(entry.path());
    return names;
  }
  test::TempFolder folder_;
  const std::string dir_ = folder_.path();
};

TEST_F(JournalTest, TheNextStartFindsTheCallsInProgressOnce) {
  die_inside(2);
  const std::vector<BadRecord> found = Journal::collect(dir_);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0], (BadRecord{"acme", "guid", "1", hex(region(1)), "krn.exec.run", "took its process down in krn.exec.run", {}}));
  EXPECT_TRUE(Journal::collect(dir_).empty());
  EXPECT_TRUE(files().empty());
}

TEST_F(JournalTest, MoreCallsThanSlotsGoWithout) {
  die_inside(100);
  EXPECT_EQ(Journal::collect(dir_).size(), 63u);
}

TEST_F(JournalTest, ALivingProcessIsNotAccused) {
  const auto journal = Journal::open(dir_);
  ASSERT_TRUE(journal);
  const Journal::Entry entry(journal, "acme", "guid", "1", "krn.exec.run", region(1));
  EXPECT_TRUE(Journal::collect(dir_).empty());
  EXPECT_EQ(files().size(), 1u);
  EXPECT_EQ(Journal::open(dir_), journal) << "one per process and folder";
}

TEST_F(JournalTest, AnEarlierBootAndDamagedFilesAccuseNobody) {
  for (const auto& [offset, bytes] : {std::pair<int, std::string>{8, "another boot"}, {0, "XXXX"}}) {
    die_inside(1);
    std::fstream(files().at(0), std::ios::in | std::ios::out | std::ios::binary).seekp(offset) << bytes;
    EXPECT_TRUE(Journal::collect(dir_).empty());
  }
  die_inside(1);
  fs::resize_file(files().at(0), 1000);
  EXPECT_TRUE(Journal::collect(dir_).empty());
  EXPECT_TRUE(files().empty());
}

TEST_F(JournalTest, WithoutAFolderThereIsNone) {
  EXPECT_EQ(Journal::open(""), nullptr);
  EXPECT_TRUE(Journal::collect("").empty());
  const Journal::Entry nothing(nullptr, "acme", "guid", "1", "krn.exec.run", region(1));
}

}  // namespace
}  // namespace keirin
