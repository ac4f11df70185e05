// SPDX-License-Identifier: Apache-2.0
//
// Entries are whole, ours and under their own key, or they are gone; nothing that happens to the folder is an error.
#include "core/cache/cache.h"

#include <gtest/gtest.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/cache/artifact.h"
#include "tests/support/mutants.h"
#include "tests/support/temp_folder.h"

namespace keirin {
namespace {

namespace fs = std::filesystem;
using test::slurp;
using test::spill;

class CacheTest : public testing::Test {
 protected:
  void SetUp() override {
    cache_ = std::make_unique<Cache>(options());
    ASSERT_TRUE(cache_->usable());
  }

  CacheOptions options() {
    CacheOptions o;
    o.dir = dir_ + "/c";
    o.warn = [this](std::string_view text) { warnings_.emplace_back(text); };
    return o;
  }
  static CacheKey key(const std::string& name) { return CacheKey().add("name", name); }
  std::string file_of(const CacheKey& k) { return dir_ + "/c/artifact/" + k.hex().substr(0, 2) + "/" + k.hex(); }

  test::TempFolder folder_;
  const std::string dir_ = folder_.path();
  std::vector<std::string> warnings_;
  std::unique_ptr<Cache> cache_;
};

TEST_F(CacheTest, WhatIsPublishedIsReadByAnotherCache) {
  const std::string body("bytes\0with zero", 15);
  EXPECT_FALSE(cache_->read(EntryKind::kArtifact, key("a")));
  ASSERT_TRUE(cache_->publish(EntryKind::kArtifact, key("a"), body));
  EXPECT_EQ(Cache(options()).read(EntryKind::kArtifact, key("a")), body);
  EXPECT_FALSE(cache_->read(EntryKind::kClaims, key("a"))) << "kinds are apart";
  EXPECT_FALSE(cache_->read(EntryKind::kArtifact, key("b")));
  cache_->remove(EntryKind::kArtifact, key("a"));
  EXPECT_FALSE(cache_->read(EntryKind::kArtifact, key("a")));
  ASSERT_TRUE(cache_->publish(EntryKind::kBad, key("q"), ""));
  EXPECT_EQ(cache_->read(EntryKind::kBad, key("q")), "");
  struct stat info {};
  ASSERT_EQ(::stat((dir_ + "/c").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(CacheTest, CountsWhatWasAskedFor) {
  cache_->publish(EntryKind::kKnown, key("a"), "body");
  for (const char* name : {"a", "b", "a"}) cache_->read(EntryKind::kKnown, key(name));
  cache_->read(EntryKind::kLedger, key("a"));
  const auto reads = cache_->reads();
  EXPECT_EQ(reads.at("known").hits, 2u);
  EXPECT_EQ(reads.at("known").misses, 1u);
  EXPECT_EQ(reads.at("ledger").misses, 1u);
  EXPECT_EQ(reads.at("artifact").hits + reads.at("artifact").misses, 0u);
}

TEST_F(CacheTest, AnEntryOfAnotherCacheIsFoundOnceItIsAdopted) {
  ASSERT_TRUE(cache_->publish(EntryKind::kLedger, key("a"), "theirs"));
  const auto file = cache_->file_of(cache_->list().at(0));
  ASSERT_TRUE(file);
  EXPECT_TRUE(cache_->check_foreign(*file)->own);
  CacheOptions o = options();
  o.dir = dir_ + "/other";
  Cache other(o);
  auto entry = other.check_foreign(*file);
  ASSERT_TRUE(entry.ok()) << entry.status().text();
  EXPECT_FALSE(entry->own) << "another cache's key";
  EXPECT_EQ(entry->key, key("a").hex());
  EXPECT_EQ(entry->key_text, key("a").text());
  EXPECT_FALSE(other.read(EntryKind::kLedger, key("a")));
  other.adopt(std::move(*entry));
  EXPECT_EQ(other.read(EntryKind::kLedger, key("a")), "theirs");
  EXPECT_FALSE(other.read(EntryKind::kKnown, key("a")));
  EXPECT_TRUE(other.list().empty()) << "in memory only";
  ASSERT_TRUE(other.publish(EntryKind::kLedger, key("a"), "newer"));
  EXPECT_EQ(other.read(EntryKind::kLedger, key("a")), "newer");
  o.dir = "/proc/nowhere";
  Cache without(o);
  EXPECT_FALSE(without.usable() || without.readable());
  without.adopt(*without.check_foreign(*file));
  EXPECT_TRUE(without.readable() && !without.usable());
  EXPECT_EQ(without.read(EntryKind::kLedger, key("a")), "theirs") << "also where no folder can be used";
}

TEST_F(CacheTest, AForeignEntryIsSoundOrRefused) {
  ASSERT_TRUE(cache_->publish(EntryKind::kArtifact, key("a"), "some body"));
  const std::string whole = *cache_->file_of(cache_->list().at(0));
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string flipped = whole;
    flipped[i] ^= 0x10;
    const auto entry = cache_->check_foreign(flipped);
    EXPECT_FALSE(entry.ok() && entry->own) << "byte " << i;
    if (entry.ok()) {
      EXPECT_TRUE(entry->key_text == key("a").text() && entry->body == "some body") << "byte " << i;
    }
  }
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_FALSE(cache_->check_foreign(whole.substr(0, i)).ok()) << i;
  EXPECT_FALSE(cache_->check_foreign(whole + "x").ok());
}

TEST_F(CacheTest, WhatIsReadIsNoted) {
  cache_->publish(EntryKind::kKnown, key("a"), "body");
  cache_->publish(EntryKind::kLedger, key("b"), "body");
  cache_->read(EntryKind::kKnown, key("a"));
  cache_->begin_noting();
  cache_->read(EntryKind::kLedger, key("b"));
  cache_->read(EntryKind::kLedger, key("nobody"));
  const std::vector<EntryInfo> noted = cache_->end_noting();
  cache_->read(EntryKind::kKnown, key("a"));
  ASSERT_EQ(noted.size(), 1u);
  EXPECT_TRUE(noted[0].kind == EntryKind::kLedger && noted[0].key == key("b").hex());
  EXPECT_TRUE(cache_->end_noting().empty());
}

TEST_F(CacheTest, AnyFlippedByteDropsTheEntry) {
  cache_->publish(EntryKind::kArtifact, key("a"), "some body");
  const std::string path = file_of(key("a")), whole = slurp(path);
  ASSERT_FALSE(whole.empty());
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string flipped = whole;
    flipped[i] ^= 0x10;
    spill(path, flipped);
    ASSERT_FALSE(cache_->read(EntryKind::kArtifact, key("a"))) << "byte " << i;
    ASSERT_FALSE(fs::exists(path)) << "the finder deletes it";
  }
}

TEST_F(CacheTest, AnyTornEntryIsDropped) {
  cache_->publish(EntryKind::kArtifact, key("a"), "some body");
  const std::string path = file_of(key("a")), whole = slurp(path);
  test::MalformedInputs inputs;
  inputs.try_truncations(whole, [&](const std::string& torn) {
    spill(path, torn);
    ASSERT_FALSE(cache_->read(EntryKind::kArtifact, key("a"))) << torn.size() << " bytes";
  });
  spill(path, whole + "x");
  EXPECT_FALSE(cache_->read(EntryKind::kArtifact, key("a")));
  spill(path, whole);
  EXPECT_TRUE(cache_->read(EntryKind::kArtifact, key("a"))) << "the test itself restores a good entry";
}

TEST_F(CacheTest, AnyMutantOfAnEntryIsDropped) {
  cache_->publish(EntryKind::kArtifact, key("a"), "some body 1234");
  const std::string path = file_of(key("a")), whole = slurp(path);
  test::MalformedInputs inputs;
  inputs.try_mutants(whole, 1000, [&](const std::string& mutant) {
    spill(path, mutant);
    ASSERT_EQ(cache_->read(EntryKind::kArtifact, key("a")).has_value(), mutant == whole);
  });
}

TEST_F(CacheTest, SwappedEntriesAreDropped) {
  cache_->publish(EntryKind::kArtifact, key("a"), "body of a");
  cache_->publish(EntryKind::kArtifact, key("b"), "body of b");
  const std::string a = slurp(file_of(key("a"))), b = slurp(file_of(key("b")));
  spill(file_of(key("a")), b);
  spill(file_of(key("b")), a);
  EXPECT_FALSE(cache_->read(EntryKind::kArtifact, key("a")));
  const auto dropped = cache_->check();
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_EQ(dropped[0].key, key("b").hex());
  EXPECT_EQ(dropped[0].problem, "it lies under the name of another key");
}

TEST_F(CacheTest, EntriesOfAnotherUsersKeyAreDropped) {
  cache_->publish(EntryKind::kArtifact, key("a"), "body");
  fs::remove(dir_ + "/c/mac.key");
  EXPECT_FALSE(Cache(options()).read(EntryKind::kArtifact, key("a")));
}

TEST_F(CacheTest, LinksAndWritableFilesAreNotRead) {
  cache_->publish(EntryKind::kArtifact, key("a"), "body");
  const std::string path = file_of(key("a"));
  fs::rename(path, dir_ + "/elsewhere");
  fs::create_symlink(dir_ + "/elsewhere", path);
  EXPECT_FALSE(cache_->read(EntryKind::kArtifact, key("a")));
  EXPECT_TRUE(fs::exists(dir_ + "/elsewhere")) << "the link is deleted, not what it points to";
  cache_->publish(EntryKind::kArtifact, key("a"), "body");
  fs::permissions(path, fs::perms::others_write, fs::perm_options::add);
  EXPECT_FALSE(cache_->read(EntryKind::kArtifact, key("a")));
}

TEST_F(CacheTest, EightProcessesPublishAtOnce) {
  constexpr int kProcesses = 8, kRounds = 100;
  std::vector<pid_t> children;
  for (int c = 0; c < kProcesses; ++c) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      Cache mine(options());
      int wrong = 0;
      for (int i = 0; i < kRounds; ++i) {
        // Bodies of different length, all of one letter: a mix or a part of two would show.
        const std::string body(static_cast<size_t>(1000 + c * 777 + i), static_cast<char>('a' + c));
        if (!mine.publish(EntryKind::kArtifact, key("shared"), body)) ++wrong;
        const auto got = mine.read(EntryKind::kArtifact, key("shared"));
        if (!got || got->find_first_not_of(got->front()) != std::string::npos) ++wrong;
      }
      ::_exit(wrong == 0 ? 0 : 1);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0) << "a reader saw a mix, a part or nothing";
  }
  EXPECT_TRUE(cache_->check().empty());
  EXPECT_EQ(cache_->list().size(), 1u) << "no temporary file is left";
}

TEST_F(CacheTest, ProcessesThatMakeTheKeyAtOnceAgree) {
  for (int round = 0; round < 20; ++round) {
    fs::remove_all(dir_ + "/c");
    std::vector<pid_t> children;
    for (int c = 0; c < 8; ++c) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        Cache mine(options());
        ::_exit(mine.usable() && mine.publish(EntryKind::kArtifact, key(std::to_string(c)), "x") ? 0 : 1);
      }
      children.push_back(pid);
    }
    for (const pid_t pid : children) {
      int status = -1;
      ::waitpid(pid, &status, 0);
      EXPECT_EQ(status, 0);
    }
    Cache reader(options());
    for (int c = 0; c < 8; ++c) EXPECT_TRUE(reader.read(EntryKind::kArtifact, key(std::to_string(c)))) << "round " << round;
  }
}

TEST_F(CacheTest, SweepKeepsTheRecentAndTheQuarantine) {
  CacheOptions small = options();
  small.max_bytes = 3000;
  Cache cache(small);
  for (int i = 0; i < 6; ++i) {
    const CacheKey k = key(std::to_string(i));
    cache.publish(EntryKind::kArtifact, k, std::string(1000, 'x'));
    const timespec times[2] = {{1000 + i, 0}, {1000 + i, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, file_of(k).c_str(), times, 0), 0);
  }
  cache.publish(EntryKind::kBad, key("q"), "why");
  EXPECT_TRUE(cache.read(EntryKind::kArtifact, key("0"))) << "and this use makes it recent";
  EXPECT_GT(cache.sweep(), 0u);
  EXPECT_TRUE(cache.read(EntryKind::kArtifact, key("0")));
  EXPECT_FALSE(cache.read(EntryKind::kArtifact, key("1")));
  EXPECT_TRUE(cache.read(EntryKind::kArtifact, key("5")));
  EXPECT_TRUE(cache.read(EntryKind::kBad, key("q")));
  uint64_t total = 0;
  for (const EntryInfo& e : cache.list()) total += e.bytes;
  EXPECT_LE(total, 3000u);
}

TEST_F(CacheTest, CheckFindsLeftoversOfDeadWriters) {
  cache_->publish(EntryKind::kArtifact, key("a"), "body");
  const std::string old = file_of(key("a")) + ".tmp.1.1.0", fresh = file_of(key("a")) + ".tmp.2.1.0";
  spill(old, "half");
  spill(fresh, "half");
  const timespec times[2] = {{1000, 0}, {1000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, old.c_str(), times, 0), 0);
  const auto dropped = cache_->check();
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_EQ(dropped[0].problem, "a writer left it behind");
  EXPECT_TRUE(fs::exists(fresh)) << "it may be in the writing";
  EXPECT_TRUE(cache_->read(EntryKind::kArtifact, key("a")));
}

TEST_F(CacheTest, AFolderThatCannotBeUsedIsOneWarningAndNoError) {
  CacheOptions o = options();
  o.dir = "/proc/keirin";  // cannot be made, by root neither
  Cache off(o);
  EXPECT_FALSE(off.usable());
  EXPECT_FALSE(off.publish(EntryKind::kArtifact, key("a"), "x"));
  EXPECT_FALSE(off.read(EntryKind::kArtifact, key("a")));
  EXPECT_FALSE(off.lock("a", std::chrono::milliseconds(0)));
  EXPECT_TRUE(off.check().empty());
  EXPECT_EQ(warnings_.size(), 1u);
  o.dir = "relative";
  EXPECT_FALSE(Cache(o).usable());
}

// A limit on the size of files stands for a full disk: the write fails in the middle.
TEST_F(CacheTest, AWriteThatFailsIsOneWarningAndLeavesNothing) {
  ASSERT_TRUE(cache_->publish(EntryKind::kArtifact, key("a"), "old"));
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const bool first = cache_->publish(EntryKind::kArtifact, key("a"), std::string(100000, 'x'));
  const bool second = cache_->publish(EntryKind::kArtifact, key("b"), std::string(100000, 'x'));
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_FALSE(first);
  EXPECT_FALSE(second);
  EXPECT_EQ(warnings_.size(), 1u);
  EXPECT_EQ(cache_->read(EntryKind::kArtifact, key("a")), "old") << "the old entry is still whole";
  int files = 0;
  for (const auto& f : fs::recursive_directory_iterator(dir_ + "/c/artifact")) files += f.is_regular_file();
  EXPECT_EQ(files, 1) << "no half-written file";
}

TEST_F(CacheTest, OneLockHolderAtATime) {
  auto first = cache_->lock("key", std::chrono::milliseconds(0));
  ASSERT_TRUE(first);
  EXPECT_FALSE(cache_->lock("key", std::chrono::milliseconds(20)));
  EXPECT_TRUE(cache_->lock("other", std::chrono::milliseconds(0)));
  first.reset();
  EXPECT_TRUE(cache_->lock("key", std::chrono::milliseconds(0)));
}

TEST_F(CacheTest, KeysAreTextInTheOrderOfNames) {
  const CacheKey a = CacheKey().add("b", "2").add("a", int64_t{1});
  const CacheKey b = CacheKey().add("a", "1").add("b", "2");
  EXPECT_EQ(a.text(), "keirin-cache 1\na=1\nb=2\n");
  EXPECT_EQ(a.hex(), b.hex());
  EXPECT_NE(CacheKey().add("a", "1\nb=2").hex(), b.hex()) << "a value cannot look like another field";
  EXPECT_NE(CacheKey().add("a", "x\\n").hex(), CacheKey().add("a", "x\n").hex());
  cache_->publish(EntryKind::kArtifact, a, "x");
  EXPECT_EQ(cache_->explain(a.hex().substr(0, 8)), a.text());
  EXPECT_FALSE(cache_->explain("zz"));
}

TEST(ArtifactBytes, RoundTripAndEveryCut) {
  const Artifact artifact{"token", std::string("body\0x", 6)};
  const std::string bytes = artifact_bytes(artifact);
  const Result<Artifact> back = parse_artifact(bytes);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->token, artifact.token);
  EXPECT_EQ(back->body, artifact.body);
  for (size_t n = 0; n < 8 + 5; ++n) EXPECT_FALSE(parse_artifact(bytes.substr(0, n)).ok());
  EXPECT_FALSE(parse_artifact(std::string(8, '\xff') + "abc").ok());
  int refused = 0;
  test::MalformedInputs inputs;
  inputs.try_mutants(bytes, 500, [&](const std::string& mutant) {
    const Result<Artifact> read = parse_artifact(mutant);
    refused += !read.ok();
    if (!read.ok()) return;
    ASSERT_EQ(read->token.size() + read->body.size() + 8, mutant.size());
  });
  EXPECT_GT(refused, 50);
}

// What holds for a while is found by this process alone, until something is published under its key, and the last ones of it.
TEST_F(CacheTest, WhatIsHeldIsForThisProcessAndNotForEver) {
  cache_->hold(EntryKind::kLedger, key("a"), "one");
  cache_->hold(EntryKind::kLedger, key("a"), "two");
  EXPECT_EQ(cache_->read(EntryKind::kLedger, key("a")), "two");
  EXPECT_FALSE(cache_->read(EntryKind::kKnown, key("a")));
  EXPECT_FALSE(Cache(options()).read(EntryKind::kLedger, key("a")));
  EXPECT_TRUE(cache_->list().empty());
  ASSERT_TRUE(cache_->publish(EntryKind::kLedger, key("a"), "three"));
  EXPECT_EQ(cache_->read(EntryKind::kLedger, key("a")), "three");
  for (size_t i = 0; i <= Cache::kMostHeld; ++i) cache_->hold(EntryKind::kLedger, key(std::to_string(i)), "x");
  EXPECT_FALSE(cache_->read(EntryKind::kLedger, key("0"))) << "the first goes";
  EXPECT_TRUE(cache_->read(EntryKind::kLedger, key("1")));
  EXPECT_TRUE(cache_->read(EntryKind::kLedger, key(std::to_string(Cache::kMostHeld))));
}

}  // namespace
}  // namespace keirin
