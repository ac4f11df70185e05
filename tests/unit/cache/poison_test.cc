// SPDX-License-Identifier: Apache-2.0
//
// Entries and folders that somebody else could have made, changed or put there: none is read, whatever it holds; nothing hangs on it;
// what it points to stays; and once it is out of the way the cache works. One row each.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "core/cache/cache.h"
#include "tests/support/temp_folder.h"
#include "tests/support/trust_count.h"

namespace keirin {
namespace {

namespace fs = std::filesystem;
using test::slurp;
using test::spill;

constexpr uid_t kSomebodyElse = 65533;

struct Place {
  std::string dir, root, entry;  // the test's folder, the cache in it, an entry of it
};

struct Poison {
  const char* name;
  bool needs_root;
  std::function<void(const Place&)> put;
};

CacheKey key(const std::string& name) { return CacheKey().add("name", name); }
std::string path_of(const std::string& root, const char* kind, const CacheKey& k) {
  return root + "/" + kind + "/" + k.hex().substr(0, 2) + "/" + k.hex();
}
void allow(const std::string& path, fs::perms who) { fs::permissions(path, who, fs::perm_options::add); }

class Poisoned : public testing::TestWithParam<Poison> {
 protected:
  void SetUp() override {
    if (GetParam().needs_root && ::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
    Cache cache(options());
    ASSERT_TRUE(cache.publish(EntryKind::kArtifact, key("a"), "good"));
    ASSERT_TRUE(cache.publish(EntryKind::kArtifact, key("b"), "of b"));
    ASSERT_TRUE(cache.publish(EntryKind::kLedger, key("a"), "ledger"));
    GetParam().put(place_);
  }
  void TearDown() override {
    if (!IsSkipped()) test::trust_count("poisoned", 1, HasFailure() ? 1 : 0);
  }
  CacheOptions options() {
    CacheOptions o;
    o.dir = place_.root;
    o.warn = [this](std::string_view text) { warnings_.emplace_back(text); };
    return o;
  }

  test::TempFolder folder_;
  const Place place_{folder_.path(), folder_.path() + "/c", path_of(folder_.path() + "/c", "artifact", key("a"))};
  std::vector<std::string> warnings_;
};

class PoisonedEntries : public Poisoned {};

TEST_P(PoisonedEntries, AreNotReadAndBuiltAgain) {
  Cache cache(options());
  ASSERT_TRUE(cache.usable());
  EXPECT_FALSE(cache.read(EntryKind::kArtifact, key("a")));
  EXPECT_TRUE(cache.publish(EntryKind::kArtifact, key("a"), "again")) << "the finder makes room";
  EXPECT_EQ(cache.read(EntryKind::kArtifact, key("a")), "again");
  EXPECT_EQ(cache.read(EntryKind::kArtifact, key("b")), "of b") << "its neighbour";
  EXPECT_TRUE(cache.check().empty());
  if (fs::exists(place_.dir + "/elsewhere")) {
    EXPECT_NE(slurp(place_.dir + "/elsewhere"), "") << "what it pointed to was touched";
  }
  EXPECT_TRUE(warnings_.empty());
}

INSTANTIATE_TEST_SUITE_P(
    All, PoisonedEntries,
    testing::Values(
        Poison{"a_link_to_a_good_copy", false,
               [](const Place& p) { fs::rename(p.entry, p.dir + "/elsewhere"), fs::create_symlink(p.dir + "/elsewhere", p.entry); }},
        Poison{"a_link_to_itself", false, [](const Place& p) { fs::remove(p.entry), fs::create_symlink(p.entry, p.entry); }},
        Poison{"a_link_to_a_device", false, [](const Place& p) { fs::remove(p.entry), fs::create_symlink("/dev/zero", p.entry); }},
        Poison{"a_second_name_of_its_neighbour", false,
               [](const Place& p) { fs::remove(p.entry), fs::create_hard_link(path_of(p.root, "artifact", key("b")), p.entry); }},
        Poison{"writable_by_the_group", false, [](const Place& p) { allow(p.entry, fs::perms::group_write); }},
        Poison{"writable_by_everybody", false, [](const Place& p) { allow(p.entry, fs::perms::others_write); }},
        Poison{"owned_by_somebody_else", true,
               [](const Place& p) { ASSERT_EQ(::chown(p.entry.c_str(), kSomebodyElse, kSomebodyElse), 0); }},
        Poison{"a_folder", false, [](const Place& p) { fs::remove(p.entry), fs::create_directory(p.entry); }},
        Poison{"a_pipe", false,
               [](const Place& p) {
                 fs::remove(p.entry);
                 ASSERT_EQ(::mkfifo(p.entry.c_str(), 0600), 0);
               }},
        Poison{"empty", false, [](const Place& p) { spill(p.entry, ""); }},
        Poison{"its_neighbours_bytes", false, [](const Place& p) { spill(p.entry, slurp(path_of(p.root, "artifact", key("b")))); }},
        Poison{"an_entry_of_another_kind", false, [](const Place& p) { spill(p.entry, slurp(path_of(p.root, "ledger", key("a")))); }},
        Poison{"what_another_cache_wrote", false,
               [](const Place& p) {
                 CacheOptions other;
                 other.dir = p.dir + "/other";
                 Cache(other).publish(EntryKind::kArtifact, key("a"), "native code of another user");
                 spill(p.entry, slurp(path_of(other.dir, "artifact", key("a"))));
               }},
        Poison{"twice_as_long", false,
               [](const Place& p) {
                 const std::string bytes = slurp(p.entry);
                 spill(p.entry, bytes + bytes);
               }}),
    [](const auto& info) { return std::string(info.param.name); });

class PoisonedFolders : public Poisoned {};

// Either the cache is off, with one warning, or what it answers is its own; nobody else's bytes come back.
TEST_P(PoisonedFolders, AreNotTrusted) {
  Cache cache(options());
  const auto found = cache.read(EntryKind::kArtifact, key("a"));
  EXPECT_TRUE(!found || *found == "good");
  if (!cache.usable()) {
    EXPECT_EQ(warnings_.size(), 1u);
    EXPECT_FALSE(cache.publish(EntryKind::kArtifact, key("c"), "x"));
    EXPECT_FALSE(found);
  } else {
    const bool published = cache.publish(EntryKind::kArtifact, key("c"), "x");
    EXPECT_EQ(published, cache.read(EntryKind::kArtifact, key("c")).has_value());
  }
  std::printf("%s: %s\n", GetParam().name, cache.usable() ? "works with its own" : "off");
}

INSTANTIATE_TEST_SUITE_P(
    All, PoisonedFolders,
    testing::Values(Poison{"the_cache_is_a_link", false,
                           [](const Place& p) { fs::rename(p.root, p.dir + "/moved"), fs::create_symlink(p.dir + "/moved", p.root); }},
                    Poison{"the_cache_is_a_file", false, [](const Place& p) { fs::remove_all(p.root), spill(p.root, "x"); }},
                    Poison{"the_cache_is_writable_by_the_group", false, [](const Place& p) { allow(p.root, fs::perms::group_write); }},
                    Poison{"the_cache_is_writable_by_everybody", false, [](const Place& p) { allow(p.root, fs::perms::others_write); }},
                    Poison{"the_cache_is_somebody_elses", true,
                           [](const Place& p) { ASSERT_EQ(::chown(p.root.c_str(), kSomebodyElse, kSomebodyElse), 0); }},
                    Poison{"the_artifacts_are_a_link", false,
                           [](const Place& p) {
                             fs::rename(p.root + "/artifact", p.dir + "/moved"), fs::create_symlink(p.dir + "/moved", p.root + "/artifact");
                           }},
                    Poison{"the_artifacts_are_writable_by_everybody", false,
                           [](const Place& p) { allow(p.root + "/artifact", fs::perms::others_write); }},
                    Poison{"the_artifacts_are_somebody_elses", true,
                           [](const Place& p) { ASSERT_EQ(::chown((p.root + "/artifact").c_str(), kSomebodyElse, kSomebodyElse), 0); }},
                    Poison{"the_locks_are_a_link", false,
                           [](const Place& p) { fs::remove_all(p.root + "/lock"), fs::create_symlink("/tmp", p.root + "/lock"); }},
                    Poison{"the_key_is_a_link", false,
                           [](const Place& p) {
                             fs::rename(p.root + "/mac.key", p.dir + "/key"), fs::create_symlink(p.dir + "/key", p.root + "/mac.key");
                           }},
                    Poison{"the_key_is_writable_by_everybody", false,
                           [](const Place& p) { allow(p.root + "/mac.key", fs::perms::others_write); }},
                    Poison{"the_key_is_somebody_elses", true,
                           [](const Place& p) { ASSERT_EQ(::chown((p.root + "/mac.key").c_str(), kSomebodyElse, kSomebodyElse), 0); }},
                    Poison{"the_key_is_cut", false, [](const Place& p) { fs::resize_file(p.root + "/mac.key", 7); }},
                    Poison{"the_key_is_a_folder", false,
                           [](const Place& p) { fs::remove(p.root + "/mac.key"), fs::create_directory(p.root + "/mac.key"); }}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace keirin
