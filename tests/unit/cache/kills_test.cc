// SPDX-License-Identifier: Apache-2.0
//
// kill -9 before and after each system call of what writes to the cache, and at random times in the middle of large writes. Whoever
// comes next finds entries whole or not at all, the check has nothing to say, and the next publish works. The victim is a child that
// this process traces, so the product needs no hook for it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <random>
#include <set>

#include "core/cache/bad_records.h"
#include "core/cache/cache.h"
#include "core/cache/ledger.h"
#include "tests/support/trust_count.h"
#include "tests/support/temp_folder.h"
#include "tests/support/traced_child.h"

namespace keirin {
namespace {

namespace fs = std::filesystem;

using Act = std::function<void(Cache&)>;

class Kills : public testing::Test {
 protected:
  void SetUp() override {
    options_.dir = dir_ + "/c";
    options_.max_bytes = 10000;
  }
  void TearDown() override {
    std::printf("%lld kills\n", static_cast<long long>(kills_));
    test::trust_count("kills", kills_, HasFailure() ? 1 : 0, crashes_);
  }

  static CacheKey key(const std::string& name) { return CacheKey().add("name", name); }
  // Bodies of one letter each: a part or a mix would show.
  static std::string body(char letter, size_t bytes = 3000) { return std::string(bytes, letter); }

  // Kills `act` at its first, second, ... stop, each time in a folder that `prepare` made anew, until it comes to its end.
  void kill_at_each_call(const Act& prepare, const Act& act, const Act& verify) {
    for (int stops = 1; !HasFailure(); ++stops) {
      ASSERT_LT(stops, 5000) << "it does not come to its end";
      SCOPED_TRACE("killed at stop " + std::to_string(stops));
      make_anew(prepare);
      test::TracedChild victim(in_a_cache(act));
      for (int i = 0; i < stops && !victim.over(); ++i) victim.step();
      if (victim.came_to_its_end()) return;
      end(victim, verify);
    }
  }

  void kill_at_random(int times, const Act& prepare, const Act& act, const Act& verify) {
    std::mt19937 random(7);
    for (int i = 0; i < times && !HasFailure(); ++i) {
      const std::chrono::microseconds time(random() % 20000);
      SCOPED_TRACE("killed after " + std::to_string(time.count()) + " us, number " + std::to_string(i));
      make_anew(prepare);
      test::TracedChild victim(in_a_cache(act));
      victim.run_for(time);
      end(victim, verify);
    }
  }

  CacheOptions options_;

 private:
  std::function<int()> in_a_cache(const Act& act) const {
    return [this, act] {
      Cache cache(options_);
      act(cache);
      return 0;
    };
  }

  void make_anew(const Act& prepare) {
    fs::remove_all(options_.dir);
    if (!prepare) return;
    Cache cache(options_);
    prepare(cache);
  }

  void end(test::TracedChild& victim, const Act& verify) {
    victim.kill();
    crashes_ += !victim.was_killed();
    ASSERT_TRUE(victim.was_killed()) << "it ended in another way; is tracing a child forbidden here?";
    ++kills_;
    Cache cache(options_);
    ASSERT_TRUE(cache.usable());
    verify(cache);
    const CacheKey next = key("published after the kill");
    EXPECT_TRUE(cache.publish(EntryKind::kArtifact, next, body('n')));
    EXPECT_EQ(Cache(options_).read(EntryKind::kArtifact, next), body('n'));
    EXPECT_TRUE(cache.check().empty()) << "a torn entry is there";
    leave_only_entries(cache);
  }

  // What the victim was writing is found by the check once it is old, and nothing else lies about.
  void leave_only_entries(Cache& cache) {
    for (const auto& file : fs::recursive_directory_iterator(options_.dir)) {
      const timespec times[2] = {{1000, 0}, {1000, 0}};
      if (!file.is_regular_file()) continue;
      ASSERT_EQ(::utimensat(AT_FDCWD, file.path().c_str(), times, 0), 0);
    }
    for (const EntryInfo& dropped : cache.check()) EXPECT_EQ(dropped.problem, "a writer left it behind");
    size_t files = 0;
    for (const auto& file : fs::recursive_directory_iterator(options_.dir))
      files += file.is_regular_file() && file.path().parent_path().filename() != "lock";
    EXPECT_EQ(files, cache.list().size() + 1) << "and the cache's key";
  }

  test::TempFolder folder_;
  const std::string dir_ = folder_.path();
  int64_t kills_ = 0, crashes_ = 0;
};

TEST_F(Kills, InTheFirstPublish) {
  kill_at_each_call({}, [](Cache& cache) { cache.publish(EntryKind::kArtifact, key("a"), body('a')); },
                    [](Cache& cache) {
                      const auto found = cache.read(EntryKind::kArtifact, key("a"));
                      EXPECT_TRUE(!found || *found == body('a'));
                    });
}

TEST_F(Kills, WhereAnEntryIsReplaced) {
  for (const EntryKind kind : {EntryKind::kClaims, EntryKind::kBad}) {  // the second one waits for the disk
    SCOPED_TRACE(entry_kind_name(kind));
    kill_at_each_call([&](Cache& cache) { cache.publish(kind, key("a"), body('o')); },
                      [&](Cache& cache) { cache.publish(kind, key("a"), body('n', 5000)); },
                      [&](Cache& cache) {
                        const auto found = cache.read(kind, key("a"));
                        ASSERT_TRUE(found) << "neither the old nor the new one";
                        EXPECT_TRUE(*found == body('o') || *found == body('n', 5000));
                      });
  }
}

TEST_F(Kills, WhereALedgerIsWritten) {
  LedgerRecord old_record, new_record;
  old_record.choice = new_record.choice = "eager";
  old_record.fingerprints = new_record.fingerprints = {{"plugin", "1"}};
  new_record.pays_back_after_calls = 7;
  kill_at_each_call([&](Cache& cache) { publish_ledger(cache, key("m"), old_record); },
                    [&](Cache& cache) { publish_ledger(cache, key("m"), new_record); },
                    [&](Cache& cache) {
                      const auto found = read_ledger(cache, key("m"), old_record.fingerprints, nullptr);
                      ASSERT_TRUE(found);
                      EXPECT_TRUE(*found == old_record || *found == new_record);
                    });
}

TEST_F(Kills, WhereABadPluginIsWrittenDown) {
  const auto record = [](const char* plugin) { return BadRecord{plugin, "guid", "1", plugin, "krn.compile.compile", "crashed", {}}; };
  kill_at_each_call([&](Cache& cache) { publish_bad_record(cache, record("first")); },
                    [&](Cache& cache) { publish_bad_record(cache, record("second")); },
                    [&](Cache& cache) {
                      std::set<std::string> plugins;
                      for (const BadRecord& bad : read_bad_records(cache)) plugins.insert(bad.plugin);
                      EXPECT_TRUE(plugins.count("first")) << "a quarantine was lost";
                      plugins.erase("first");
                      plugins.erase("second");
                      EXPECT_TRUE(plugins.empty());
                    });
}

TEST_F(Kills, InASweep) {
  constexpr int kEntries = 8, kFit = 3;
  const auto fill = [](Cache& cache) {
    for (int i = 0; i < kEntries; ++i) cache.publish(EntryKind::kArtifact, key(std::to_string(i)), body(static_cast<char>('a' + i)));
    cache.publish(EntryKind::kBad, key("q"), "why");
  };
  kill_at_each_call(fill, [](Cache& cache) { cache.sweep(); },
                    [&](Cache& cache) {
                      int left = 0;
                      for (int i = 0; i < kEntries; ++i)
                        if (const auto found = cache.read(EntryKind::kArtifact, key(std::to_string(i)))) {
                          ++left;
                          EXPECT_EQ(*found, body(static_cast<char>('a' + i)));
                        }
                      EXPECT_GE(left, kFit) << "more was deleted than had to be";
                      EXPECT_EQ(cache.read(EntryKind::kBad, key("q")), "why");
                      cache.sweep();
                      uint64_t bytes = 0;
                      for (const EntryInfo& entry : cache.list()) bytes += entry.bytes;
                      EXPECT_LE(bytes, options_.max_bytes) << "the next sweep ends what this one began";
                    });
}

TEST_F(Kills, InACheckThatRepairs) {
  const auto spoil = [&](Cache& cache) {
    for (const char* name : {"good", "torn"}) cache.publish(EntryKind::kArtifact, key(name), body('x'));
    const std::string hex = key("torn").hex();
    fs::resize_file(options_.dir + "/artifact/" + hex.substr(0, 2) + "/" + hex, 200);
  };
  kill_at_each_call(spoil, [](Cache& cache) { cache.check(); },
                    [](Cache& cache) {
                      EXPECT_EQ(cache.read(EntryKind::kArtifact, key("good")), body('x'));
                      EXPECT_FALSE(cache.read(EntryKind::kArtifact, key("torn")));
                    });
}

TEST_F(Kills, InTheMiddleOfLargeWrites) {
  constexpr size_t kBytes = 2 << 20;
  options_.max_bytes = 100 << 20;
  kill_at_random(60, [](Cache& cache) { cache.publish(EntryKind::kArtifact, key("a"), body('o', kBytes)); },
                 [](Cache& cache) {
                   for (char letter = 'a';; letter = letter == 'n' ? 'a' : static_cast<char>(letter + 1))
                     cache.publish(EntryKind::kArtifact, key("a"), body(letter, kBytes));
                 },
                 [&](Cache& cache) {
                   const auto found = cache.read(EntryKind::kArtifact, key("a"));
                   ASSERT_TRUE(found);
                   EXPECT_EQ(found->size(), kBytes);
                   EXPECT_EQ(found->find_first_not_of(found->front()), std::string::npos) << "a mix of two";
                 });
}

}  // namespace
}  // namespace keirin
