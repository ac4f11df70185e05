// SPDX-License-Identifier: Apache-2.0
//
// Each system call on files that opening, publishing, reading, sweeping and checking make fails in each way that a file system
// knows: once, and from then on for ever. The process comes to its end, what it said is true, what was whole stays whole, and the
// next process finds a cache that works. The errors are put into a child's answers from the kernel, so the product has no hook.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <filesystem>
#include <fstream>

#include "core/cache/bad_records.h"
#include "core/cache/cache.h"
#include "core/cache/ledger.h"
#include "tests/support/temp_folder.h"
#include "tests/support/traced_child.h"
#include "tests/support/trust_count.h"

namespace keirin {
namespace {

namespace fs = std::filesystem;

enum CallKind : unsigned {
  kNone = 0,
  kOpen = 1,
  kCreate = 2,
  kMakeDir = 4,
  kRename = 8,
  kUnlink = 16,
  kStat = 32,
  kRead = 64,
  kWrite = 128,
  kSync = 256,
  kLock = 512,
  kTouch = 1024,
  kList = 2048,
  kAny = 4095
};

constexpr int kShort = -1;  // no error: half of the bytes

struct FileError {
  int error;
  const char* name;
  unsigned calls;  // that can fail like that
};
constexpr FileError kErrors[] = {
    {ENOSPC, "ENOSPC", kCreate | kMakeDir | kRename | kWrite | kSync},
    {EIO, "EIO", kAny},
    {EACCES, "EACCES", kOpen | kCreate | kMakeDir | kRename | kUnlink | kStat | kTouch},
    {EROFS, "EROFS", kCreate | kMakeDir | kRename | kUnlink | kTouch},
    {EMFILE, "EMFILE", kOpen | kCreate},
    {EINTR, "EINTR", kOpen | kCreate | kRead | kWrite | kSync | kLock},
    {ESTALE, "ESTALE", kAny},
    {kShort, "short", kRead | kWrite},
};
constexpr int kSignalsInARow = 20;  // nobody is interrupted for ever

constexpr int kToldSuccess = 0, kToldFailure = 1;

// What a process does with the cache; whether it was told that it worked.
using Act = std::function<bool(Cache&)>;

class FileErrors : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::TracedChild::kAnswersCanBeReplaced) GTEST_SKIP() << "the answers of system calls are replaced on x86-64 only";
    options_.dir = folder_.path() + "/c";
    options_.max_bytes = 10000;
  }
  void TearDown() override {
    std::printf("%lld file errors\n", static_cast<long long>(cases_));
    test::trust_count("file_errors", cases_, HasFailure() ? 1 : 0, crashes_);
  }

  static CacheKey key(const std::string& name) { return CacheKey().add("name", name); }
  static std::string body(char letter, size_t bytes = 3000) { return std::string(bytes, letter); }

#if defined(__x86_64__)
  static CallKind kind_of(const test::TracedChild::Call& call) {
    switch (call.number) {
      case SYS_open: return call.arguments[1] & O_CREAT ? kCreate : kOpen;
      case SYS_openat: return call.arguments[2] & O_CREAT ? kCreate : kOpen;
      case SYS_mkdir: case SYS_mkdirat: return kMakeDir;
      case SYS_rename: case SYS_renameat: case SYS_renameat2: return kRename;
      case SYS_unlink: case SYS_unlinkat: case SYS_rmdir: return kUnlink;
      case SYS_stat: case SYS_lstat: case SYS_fstat: case SYS_newfstatat: case SYS_statx: case SYS_access: case SYS_faccessat: return kStat;
      case SYS_read: case SYS_pread64: return kRead;
      case SYS_write: return kWrite;
      case SYS_fsync: case SYS_fdatasync: return kSync;
      case SYS_flock: return kLock;
      case SYS_utimensat: return kTouch;
      case SYS_getdents64: return kList;
      default: return kNone;
    }
  }

  // `verify` gets what the victim was told and whether the error was one that must not be noticed.
  void try_all(const Act& prepare, const Act& act, const std::function<void(Cache&, bool told, bool harmless)>& verify) {
    for (const FileError& e : kErrors)
      for (const bool for_ever : {false, true})
        for (int nth = 1; !HasFailure(); nth += for_ever ? 6 : 1) {  // once: each call
          SCOPED_TRACE(std::string(e.name) + (for_ever ? " for ever" : " once") + " from call " + std::to_string(nth));
          make_anew(prepare);
          bool hit = false;
          const int told = run(act, e, nth, for_ever, &hit);
          if (!hit) break;
          ++cases_;
          crashes_ += told != kToldSuccess && told != kToldFailure;
          ASSERT_TRUE(told == kToldSuccess || told == kToldFailure) << "it did not come to its end";
          Cache cache(options_);
          ASSERT_TRUE(cache.usable());
          verify(cache, told == kToldSuccess, e.error == EINTR || (e.error == kShort && !for_ever));
          EXPECT_TRUE(cache.publish(EntryKind::kArtifact, key("next"), body('n')));
          EXPECT_EQ(Cache(options_).read(EntryKind::kArtifact, key("next")), body('n'));
          EXPECT_TRUE(cache.check().empty()) << "a torn entry is there";
        }
  }

  int run(const Act& act, const FileError& e, int nth, bool for_ever, bool* hit) {
    test::TracedChild victim([&] {
      Cache cache(options_);
      return act(cache) ? kToldSuccess : kToldFailure;
    });
    int seen = 0;
    for (auto call = victim.next_call(); !victim.over(); call = victim.next_call()) {
      const CallKind kind = kind_of(call);
      if (!(kind & e.calls) || (e.error == kShort && call.arguments[2] < 2)) continue;
      ++seen;
      const int last = !for_ever ? nth : e.error == EINTR ? nth + kSignalsInARow - 1 : 1 << 30;
      if (seen < nth || seen > last) continue;
      *hit = true;
      if (e.error == kShort) victim.shorten_call(call.arguments[2] / 2);
      else victim.fail_call(e.error);
      if (seen == last) victim.let_go();
    }
    return WIFEXITED(victim.status()) ? WEXITSTATUS(victim.status()) : -1;
  }
#else
  void try_all(const Act&, const Act&, const std::function<void(Cache&, bool, bool)>&) {}
#endif

  CacheOptions options_;

 private:
  void make_anew(const Act& prepare) {
    fs::remove_all(options_.dir);
    if (!prepare) return;
    Cache cache(options_);
    prepare(cache);
  }

  test::TempFolder folder_;
  int64_t cases_ = 0, crashes_ = 0;
};

TEST_F(FileErrors, InTheFirstPublish) {
  try_all({}, [](Cache& cache) { return cache.publish(EntryKind::kArtifact, key("a"), body('a')); },
          [](Cache& cache, bool told, bool harmless) {
            const auto found = cache.read(EntryKind::kArtifact, key("a"));
            EXPECT_TRUE(!found || *found == body('a'));
            EXPECT_EQ(found.has_value(), told);
            EXPECT_TRUE(told || !harmless) << "nothing was wrong with the disk";
          });
}

TEST_F(FileErrors, WhereAnEntryIsReplaced) {
  for (const EntryKind kind : {EntryKind::kClaims, EntryKind::kBad})
    try_all([&](Cache& cache) { return cache.publish(kind, key("a"), body('o')); },
            [&](Cache& cache) { return cache.publish(kind, key("a"), body('n', 5000)); },
            [&](Cache& cache, bool told, bool harmless) {
              const auto found = cache.read(kind, key("a"));
              ASSERT_TRUE(found) << "neither the old nor the new one";
              EXPECT_TRUE(*found == (told ? body('n', 5000) : body('o')));
              EXPECT_TRUE(told || !harmless);
            });
}

TEST_F(FileErrors, WhereALedgerIsWritten) {
  LedgerRecord before, after;
  before.choice = after.choice = "eager";
  after.pays_back_after_calls = 7;
  try_all([&](Cache& cache) { return publish_ledger(cache, key("m"), before); },
          [&](Cache& cache) { return publish_ledger(cache, key("m"), after); },
          [&](Cache& cache, bool told, bool) {
            const auto found = read_ledger(cache, key("m"), {}, nullptr);
            ASSERT_TRUE(found);
            EXPECT_TRUE(*found == (told ? after : before));
          });
}

TEST_F(FileErrors, WhereABadPluginIsWrittenDown) {
  const auto record = [](const char* plugin) { return BadRecord{plugin, "guid", "1", plugin, "krn.compile.compile", "crashed", {}}; };
  try_all([&](Cache& cache) { return publish_bad_record(cache, record("first")); },
          [&](Cache& cache) { return publish_bad_record(cache, record("second")); },
          [&](Cache& cache, bool told, bool) {
            const std::vector<BadRecord> found = read_bad_records(cache);
            EXPECT_EQ(found.size(), told ? 2u : 1u) << "a quarantine was lost, or promised and not kept";
          });
}

// What cannot be read at the moment is not bad: it stays.
TEST_F(FileErrors, WhereEntriesAreRead) {
  try_all([](Cache& cache) {
            return cache.publish(EntryKind::kArtifact, key("a"), body('a')) && cache.publish(EntryKind::kBad, key("q"), "why");
          },
          [](Cache& cache) {
            const auto found = cache.read(EntryKind::kArtifact, key("a"));
            (void)cache.bodies(EntryKind::kBad);
            return found && *found == body('a');
          },
          [](Cache& cache, bool told, bool harmless) {
            EXPECT_EQ(cache.read(EntryKind::kArtifact, key("a")), body('a'));
            EXPECT_EQ(cache.read(EntryKind::kBad, key("q")), "why");
            EXPECT_TRUE(told || !harmless);
          });
}

TEST_F(FileErrors, InACheckThatRepairs) {
  try_all([&](Cache& cache) {
            cache.publish(EntryKind::kArtifact, key("torn"), body('x'));
            const std::string hex = key("torn").hex();
            fs::resize_file(options_.dir + "/artifact/" + hex.substr(0, 2) + "/" + hex, 200);
            return cache.publish(EntryKind::kArtifact, key("good"), body('x')) && cache.publish(EntryKind::kBad, key("q"), "why");
          },
          [](Cache& cache) {
            (void)cache.check();
            return true;
          },
          [](Cache& cache, bool, bool) {
            EXPECT_EQ(cache.read(EntryKind::kArtifact, key("good")), body('x'));
            EXPECT_EQ(cache.read(EntryKind::kBad, key("q")), "why");
            EXPECT_FALSE(cache.read(EntryKind::kArtifact, key("torn")));
          });
}

TEST_F(FileErrors, InASweep) {
  constexpr int kEntries = 5;
  try_all(
      [](Cache& cache) {
        for (int i = 0; i < kEntries; ++i) cache.publish(EntryKind::kArtifact, key(std::to_string(i)), body(static_cast<char>('a' + i)));
        return cache.publish(EntryKind::kBad, key("q"), "why");
      },
      [](Cache& cache) {
        (void)cache.sweep();
        return true;
      },
      [&](Cache& cache, bool, bool) {
        int left = 0;
        for (int i = 0; i < kEntries; ++i)
          if (const auto found = cache.read(EntryKind::kArtifact, key(std::to_string(i)))) {
            ++left;
            EXPECT_EQ(*found, body(static_cast<char>('a' + i)));
          }
        EXPECT_GE(left, 3) << "more was deleted than had to be";
        EXPECT_EQ(cache.read(EntryKind::kBad, key("q")), "why");
      });
}

// A file system of 64 KiB in a namespace of its own, filled to the last byte.
class FullDisk : public testing::Test {
 protected:
  static constexpr int kNotAllowed = 78;

  void SetUp() override {
    fs::create_directory(disk_);
    options_.dir = disk_ + "/c";
    options_.warn = [this](std::string_view) { ++warnings_; };
  }
  // `act` answers 0, or the number of what was wrong.
  void expect_right_on_small_disk(const std::function<int()>& act) {
    const int status = with_small_disk(disk_, act);
    if (status == kNotAllowed) GTEST_SKIP() << "a file system in a user namespace is not allowed here";
    EXPECT_EQ(status, 0);
  }

  const test::TempFolder folder_;
  const std::string disk_ = folder_.path() + "/disk";
  CacheOptions options_;
  int warnings_ = 0;

 private:
  // Exit status of `act` in a child whose `dir` is a disk of 64 KiB.
  static int with_small_disk(const std::string& dir, const std::function<int()>& act) {
    const uid_t user = ::geteuid();
    const gid_t group = ::getegid();
    const pid_t pid = ::fork();
    if (pid == 0) {
      if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ::_exit(kNotAllowed);
      const auto map = [](const char* file, const std::string& text) { return bool(std::ofstream(file) << text << std::flush); };
      const auto same = [](unsigned id) { return std::to_string(id) + " " + std::to_string(id) + " 1"; };
      if (!map("/proc/self/setgroups", "deny") || !map("/proc/self/uid_map", same(user)) || !map("/proc/self/gid_map", same(group)))
        ::_exit(kNotAllowed);
      if (::mount("none", dir.c_str(), "tmpfs", 0, "size=64k,mode=0700") != 0) ::_exit(kNotAllowed);
      ::_exit(act());
    }
    int status = -1;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
};

TEST_F(FullDisk, CostsWhatDoesNotFitAndNothingElse) {
  const auto key = [](int n) { return CacheKey().add("n", n); };
  const auto act = [&]() -> int {
    Cache cache(options_);
    if (!cache.usable()) return 1;
    int kept = 0;
    while (kept < 100 && cache.publish(EntryKind::kArtifact, key(kept), std::string(5000, 'x'))) ++kept;
    if (kept == 0 || kept == 100 || warnings_ != 1) return 2;
    if (cache.publish(EntryKind::kBad, key(200), std::string(5000, 'q'))) return 3;
    for (int i = 0; i < kept; ++i)
      if (cache.read(EntryKind::kArtifact, key(i)) != std::string(5000, 'x')) return 4;
    if (!cache.check().empty()) return 5;
    for (const auto& file : fs::recursive_directory_iterator(options_.dir))
      if (file.path().string().find(".tmp.") != std::string::npos) return 6;
    Cache next(options_);  // needs no room
    if (!next.usable() || next.read(EntryKind::kArtifact, key(0)) != std::string(5000, 'x')) return 7;
    next.remove(EntryKind::kArtifact, key(0));
    next.remove(EntryKind::kArtifact, key(1));
    return next.publish(EntryKind::kBad, key(200), std::string(5000, 'q')) ? 0 : 8;
  };
  expect_right_on_small_disk(act);
}

TEST_F(FullDisk, WithoutRoomForTheKeyThereIsNoCacheAndOneWarning) {
  const auto act = [&]() -> int {
    std::ofstream(disk_ + "/fill") << std::string(1 << 20, 'x');
    Cache cache(options_);
    if (cache.usable() || warnings_ != 1) return 1;
    if (cache.publish(EntryKind::kArtifact, CacheKey().add("n", "a"), "x")) return 2;
    fs::remove(disk_ + "/fill");
    return Cache(options_).usable() ? 0 : 3;
  };
  expect_right_on_small_disk(act);
}

}  // namespace
}  // namespace keirin
