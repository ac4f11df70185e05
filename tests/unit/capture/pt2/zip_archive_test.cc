// SPDX-License-Identifier: Apache-2.0
//
// Every hostile zip directory must be refused, and a plain one read.
#include "core/capture/pt2/zip_archive.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/unit/capture/pt2/zip_writer.h"

namespace keirin::pt2 {
namespace {

using test::ZipItem;

// What open, take_root and reading every record say; "ok" if nothing fails.
std::string verdict(const std::string& bytes) {
  auto source = wrap_memory(std::as_bytes(std::span(bytes)));
  Result<ZipArchive> archive = ZipArchive::open(*source, Limits{});
  if (!archive.ok()) return archive.status().message().what;
  if (Status s = archive->take_root(); !s.ok()) return s.message().what;
  for (const ZipRecord& r : archive->records())
    if (Result<std::string> text = archive->read_text(r, Limits{}); !text.ok()) return text.status().message().what;
  return "ok";
}

TEST(ZipArchive, ReadsStoredRecords) {
  std::string bytes = test::write_zip({{"m/b", "world"}, {"m/a", "hello"}, {"m/dir/", ""}});
  auto source = wrap_memory(std::as_bytes(std::span(bytes)));
  Result<ZipArchive> archive = ZipArchive::open(*source, Limits{});
  ASSERT_TRUE(archive.ok()) << archive.status().text();
  ASSERT_TRUE(archive->take_root().ok());
  ASSERT_EQ(archive->records().size(), 2u);
  EXPECT_EQ(*archive->read_text(*archive->find("a"), Limits{}), "hello");
  EXPECT_EQ(archive->find("c"), nullptr);
  EXPECT_TRUE(archive->has_prefix("b"));
  EXPECT_FALSE(archive->has_prefix("dir"));
}

TEST(ZipArchive, RefusesHostileRecords) {
  const char* unsafe = "a zip record has an unsafe name: absolute, with \"..\", or not plain UTF-8";
  EXPECT_EQ(verdict(test::write_zip({{"m/a", "x", 8}})), "a zip record is compressed; torch stores them plainly");
  EXPECT_EQ(verdict(test::write_zip({{"m/a", "x", 0, 1}})), "a zip record is encrypted");
  EXPECT_EQ(verdict(test::write_zip({{"m/a", "x"}, {"m/a", "y"}})), "two zip records have the same name");
  for (const char* name : {"/m/a", "m/../a", "m//a", "./a", "m\\a", "m/\xff", "c:/a", "m/a\n", ""})
    EXPECT_EQ(verdict(test::write_zip({{name, "x"}})), unsafe) << name;
  EXPECT_EQ(verdict(test::write_zip({{"m/a", "x"}, {"n/a", "y"}})), "the zip file has two root folders");
  EXPECT_EQ(verdict(test::write_zip({{"a", "x"}})), "a zip record lies outside the root folder");
  EXPECT_EQ(verdict(test::write_zip({})), "the zip file has no records");
  EXPECT_EQ(verdict(test::write_zip({{"m/a", "x", 0, 8, 1}})), "the record has a wrong checksum");
  EXPECT_EQ(verdict(test::write_zip({{"m/a", "xyz", 0, 8, 0, 20}, {"m/b", "y"}})), "two zip records overlap");
  EXPECT_EQ(verdict(test::write_zip({{"m/a", "xyz", 0, 8, 0, 20}})), "a zip record reaches into the directory");
  EXPECT_EQ(verdict(test::write_zip({{"m/a", "xyz", 0, 0, 0, 1}})),
            "the header of a zip record and the directory disagree");
  EXPECT_EQ(verdict(test::write_zip({{"m/a", "x", 0, 0, 0, 0, 0, "m/b"}})),
            "the header of a zip record and the directory disagree");
  EXPECT_EQ(verdict(test::write_zip({{"m/a", "x", 0, 0, 0, 0, 1}})),
            "a zip record has no header where the directory says");
  EXPECT_EQ(verdict(test::write_zip({{"m/a", "x", 0, 0, 0, 0, 1000}})),
            "a zip record starts inside or behind the directory");
}

TEST(ZipArchive, RefusesDamagedEnds) {
  std::string good = test::write_zip({{"m/a", "x"}});
  EXPECT_EQ(verdict(good), "ok");
  EXPECT_EQ(verdict(""), "this is not a zip file: it has 0 bytes");
  EXPECT_EQ(verdict(good + "tail"),
            "the end record of the zip directory is missing: the file is cut off or is not a zip file");
  EXPECT_EQ(verdict("head" + good), "the zip directory is not where its end record says");
  std::string more = good;
  more[more.size() - 22 + 8] = more[more.size() - 22 + 10] = 2;
  EXPECT_EQ(verdict(more), "the zip directory is cut off");
  std::string fewer = good;
  fewer[fewer.size() - 22 + 8] = fewer[fewer.size() - 22 + 10] = 0;
  EXPECT_EQ(verdict(fewer), "the zip directory is longer than its entries");
}

// A good file with the wide end record, as miniz writes it for every torch file; `shift` moves what the locator says.
std::string with_zip64(uint64_t shift, uint64_t count) {
  std::string good = test::write_zip({{"m/a", "x"}});
  std::string end = good.substr(good.size() - 22);
  good.resize(good.size() - 22);
  uint64_t at = good.size(), start = static_cast<unsigned char>(end[16]);
  test::put(good, 0x06064b50, 4), test::put(good, 44, 8), test::put(good, 45, 2), test::put(good, 45, 2),
      test::put(good, 0, 8);
  test::put(good, count, 8), test::put(good, count, 8), test::put(good, at - start, 8), test::put(good, start, 8);
  test::put(good, 0x07064b50, 4), test::put(good, 0, 4), test::put(good, at + shift, 8), test::put(good, 1, 4);
  for (size_t i = 8; i < 20; ++i) end[i] = static_cast<char>(0xff);
  return good + end;
}

TEST(ZipArchive, ReadsZip64Ends) {
  EXPECT_EQ(verdict(with_zip64(0, 1)), "ok");
  EXPECT_EQ(verdict(with_zip64(1, 1)), "the zip64 end record is not where its locator says");
  EXPECT_EQ(verdict(with_zip64(0, 2)), "the zip directory is cut off");
  EXPECT_EQ(verdict(with_zip64(0, uint64_t{1} << 60)),
            "the zip directory has 1152921504606846976 records in 49 bytes, more than the limit");
}

TEST(ZipArchive, KnowsTheChecksumOfTheStandard) {
  std::string text = "123456789";
  EXPECT_EQ(crc32(std::as_bytes(std::span(text))), 0xCBF43926u);
}

TEST(ZipArchive, ReadsSizesFromZip64FieldsBehindOthers) {
  const std::string other("\x77\x77\x03\x00" "abc", 7), empty("\x77\x77\x00\x00", 4);
  for (const std::string& before : {std::string(), empty, other, other + empty + other})
    EXPECT_EQ(verdict(test::write_zip({{"m/a", "hello"}, {"m/b", "world", 0, 0, 0, 0, 0, "", before, true}})), "ok") << before.size();
  EXPECT_EQ(verdict(test::write_zip({{"m/a", "x", 0, 0, 0, 0, 0, "", other}})), "ok") << "a field that means nothing to us";
  EXPECT_EQ(verdict(test::write_zip({{"m/a", "x", 0, 0, 0, 0, 0, "", std::string("\x77\x77\x04\x00" "abc", 7)}})),
            "an extra field of a zip record is longer than its space");
}

TEST(ZipArchive, AFileThatBecomesShorterIsSaidToBe) {
  const std::string path = ::testing::TempDir() + "/keirin_zip_archive_shorter";
  std::ofstream(path, std::ios::binary) << std::string(5000, 'x');
  auto source = open_file(path);
  ASSERT_TRUE(source.ok()) << source.status().text();
  ASSERT_EQ(::truncate(path.c_str(), 100), 0);
  std::vector<std::byte> into(1000);
  ASSERT_TRUE((*source)->read(0, std::span(into).first(100)).ok());
  const Status status = (*source)->read(50, into);
  EXPECT_EQ(status.code(), Code::k_corrupt);
  EXPECT_EQ(status.message().what, "the file became shorter while it was read");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace keirin::pt2
