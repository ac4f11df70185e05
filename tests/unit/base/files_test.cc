// SPDX-License-Identifier: Apache-2.0
//
// Who may have touched a file, and that a published one is whole.
#include "core/base/files.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace keirin {
namespace {

namespace fs = std::filesystem;

class Files : public testing::Test {
 protected:
  test::TempFolder folder_;
  const std::string dir_ = folder_.path();
};

TEST_F(Files, OwnedPaths) {
  const std::string file = dir_ + "/f";
  std::ofstream(file) << "x";
  fs::permissions(file, fs::perms(0644));
  EXPECT_TRUE(check_owned_path(file).ok()) << "a sticky /tmp above is not a danger";
  EXPECT_FALSE(check_owned_path("f").ok());
  EXPECT_FALSE(check_owned_path(dir_ + "/none").ok());
  fs::permissions(file, fs::perms(0646));
  EXPECT_FALSE(check_owned_path(file).ok());
  fs::permissions(file, fs::perms(0644));
  fs::permissions(dir_, fs::perms(0707));
  EXPECT_FALSE(check_owned_path(file).ok()) << "who can write the folder can replace the file";
  fs::permissions(dir_, fs::perms(0700));
  fs::create_symlink(file, dir_ + "/link");
  EXPECT_TRUE(check_owned_path(dir_ + "/link").ok()) << "what it points to is judged";
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(file.c_str(), 12345, 12345), 0);
    const Status status = check_owned_path(file);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.text().find("user 12345"), std::string::npos) << status.text();
    EXPECT_FALSE(read_private_file(file, 100).ok());
  }
}

TEST_F(Files, PrivateFolders) {
  EXPECT_TRUE(make_private_dir(dir_ + "/a/b/c").ok());
  EXPECT_EQ(fs::status(dir_ + "/a/b").permissions(), fs::perms(0700));
  EXPECT_TRUE(make_private_dir(dir_ + "/a/b/c").ok()) << "again";
  std::ofstream(dir_ + "/file") << "x";
  EXPECT_FALSE(make_private_dir(dir_ + "/file").ok());
  EXPECT_FALSE(make_private_dir("a/b").ok());
  fs::create_symlink(dir_ + "/a", dir_ + "/link");
  EXPECT_FALSE(make_private_dir(dir_ + "/link").ok());
  fs::permissions(dir_ + "/a/b/c", fs::perms(0777));
  EXPECT_FALSE(make_private_dir(dir_ + "/a/b/c").ok());
}

TEST_F(Files, PublishedFilesAreReadBack) {
  const std::string path = dir_ + "/f";
  ASSERT_TRUE(publish_file(path, "one").ok());
  ASSERT_TRUE(publish_file(path, "two", true).ok());
  EXPECT_EQ(*read_private_file(path, 100), "two");
  EXPECT_FALSE(read_private_file(path, 2).ok()) << "larger than allowed";
  EXPECT_FALSE(read_private_file(dir_, 100).ok());
  EXPECT_FALSE(publish_file(dir_ + "/none/f", "x").ok());
  fs::create_symlink(path, dir_ + "/link");
  EXPECT_FALSE(read_private_file(dir_ + "/link", 100).ok());
  int files = 0;
  for (const auto& f : fs::directory_iterator(dir_)) files += f.is_regular_file() && !f.is_symlink();
  EXPECT_EQ(files, 1) << "no temporary file is left";
}

TEST_F(Files, ALockGoesWithItsProcess) {
  const std::string path = dir_ + "/lock";
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    auto held = FileLock::take(path, std::chrono::milliseconds(0));
    (void)!::write(ready[1], "x", 1);
    ::pause();
    ::_exit(0);
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const auto busy = FileLock::take(path, std::chrono::milliseconds(10));
  ASSERT_TRUE(busy.ok());
  EXPECT_FALSE(*busy);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const auto freed = FileLock::take(path, std::chrono::milliseconds(1000));
  ASSERT_TRUE(freed.ok());
  EXPECT_TRUE(*freed);
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace
}  // namespace keirin
