// SPDX-License-Identifier: Apache-2.0
//
// Damage to the two files that are read before a plugin is loaded: its manifest and what an earlier probe said. A damaged manifest is
// refused or names a library below itself; a damaged verdict is probed again or is some verdict. Never a crash.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "core/host/find/manifest.h"
#include "core/host/find/probe.h"
#include "tests/support/mutants.h"
#include "tests/support/temp_folder.h"

namespace keirin {
namespace {

namespace fs = std::filesystem;
using test::slurp;
using test::spill;

class ReaderMutants : public testing::Test {
 protected:
  test::TempFolder folder_;
  const std::string dir_ = folder_.path();
};

TEST_F(ReaderMutants, Manifest) {
  const std::string good = slurp(std::string(KEIRIN_SOURCE_DIR) + "/plugins/skeleton/manifest.toml.in"), path = dir_ + "/manifest.toml";
  ASSERT_FALSE(good.empty());
  int refused = 0, read = 0;
  const auto judge = [&](const std::string& text) {
    spill(path, text);
    Manifest manifest;
    const Status status = read_manifest(path, &manifest);
    if (!status.ok()) {
      ++refused;
      ASSERT_TRUE(status.code() == Code::k_corrupt || status.code() == Code::k_version) << status.text();
      ASSERT_EQ(status.message().where, path);
      return;
    }
    ++read;
    ASSERT_FALSE(manifest.variants.empty());
    ASSERT_LE(manifest.opset_min, manifest.opset_max);
    for (const ManifestVariant& variant : manifest.variants)
      ASSERT_TRUE(fs::path(variant.library).lexically_normal().string().starts_with(dir_ + "/")) << variant.library;
  };
  test::MalformedInputs inputs;
  inputs.try_truncations(good, judge);
  inputs.try_mutants(good, 1500, judge);
  EXPECT_GT(refused, 500);
  EXPECT_GT(read, 100);
  // What fuzzing found: the parser's own assumptions, which are undefined behaviour where they do not hold, and their likes.
  for (const std::string& line : std::vector<std::string>{std::string("[\0", 2),
                                                          "[$]",
                                                          "[[ =x]]",
                                                          "[\n]",
                                                          "a=1\n \t[",
                                                          "m\xef\xb6\xbf",
                                                          "x = 'a' \xef\xb6\xbf",
                                                          "x = \"\\\"\" \xc2\xa0",
                                                          "x = \"\"\"",
                                                          "x =0\"\xc9\x9b\"",
                                                          "x= [1,}1]",
                                                          "x = [1,,2]",
                                                          "x = [[1]]",
                                                          "x = {a = 1}",
                                                          "x = 1979-05-27",
                                                          "x = 0x10",
                                                          "x = +1",
                                                          "x = -",
                                                          "x",
                                                          "x =",
                                                          "x = 'a",
                                                          "x = \"\\q\"",
                                                          "x = \"\\",
                                                          "= 1",
                                                          "[a.b]",
                                                          "[a",
                                                          "[[a]",
                                                          "x = 1 y = 2",
                                                          "x = 1\v",
                                                          "x = 1234567890123456789"}) {
    SCOPED_TRACE(line);
    inputs.try_one(line + "\n" + good, judge);
    Manifest manifest;
    spill(path, good + "\n" + line);
    const Status status = read_manifest(path, &manifest);
    EXPECT_NE(status.text().find("is neither a [header] nor a key"), std::string::npos) << status.text();
  }
  inputs.try_one(good + "\n\tpublisher_note = 'M\xc3\xbcller' # caf\xc3\xa9\r\n x-y=[ -1 ,true, \"\\\"\\n\" ,]\n[other]\n",
                 [&](const std::string& text) {
                   spill(path, text);
                   Manifest manifest;
                   EXPECT_TRUE(read_manifest(path, &manifest).ok()) << "strings and comments may hold any text";
                 });
  for (const char* deep : {"[", "{a=", "[[a]]\n"}) {
    std::string nested = "x = ";
    for (int i = 0; i < 5000; ++i) nested += deep;
    inputs.try_one(nested, judge);
  }
}

TEST_F(ReaderMutants, Verdict) {
  const std::string library = dir_ + "/libacme.so";
  spill(library, "x");
  const VerdictStore store(dir_ + "/cache", {});
  const PluginSession::Identity acme{library, "guid", "1"};
  store.remember(acme, {true, false, "", "", "build 7", {{true, "device", ""}, {false, "other", "too old"}}});
  ASSERT_TRUE(store.recall(acme));
  const std::string path = fs::directory_iterator(dir_ + "/cache/probe")->path(), good = slurp(path);
  int forgotten = 0, recalled = 0;
  const auto judge = [&](const std::string& text) {
    spill(path, text);
    (store.recall(acme) ? recalled : forgotten)++;
  };
  test::MalformedInputs inputs;
  inputs.try_truncations(good, judge);
  EXPECT_EQ(recalled, 0);
  inputs.try_mutants(good, 1000, judge);
  EXPECT_GT(forgotten, 300);
  EXPECT_GT(recalled, 50);
  inputs.try_one(std::string(100000, '['), judge);
}

}  // namespace
}  // namespace keirin
