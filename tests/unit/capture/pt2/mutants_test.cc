// SPDX-License-Identifier: Apache-2.0
//
// Damaged files end in a value or a clear Status, never in a crash: every truncation, and deterministic mutants of the
// zip bytes and of the JSON inside a zip that is itself sound. Run under sanitizers to give it teeth.
#include <gtest/gtest.h>

#include <random>

#include "core/capture/pt2/read_pt2.h"
#include "tests/unit/capture/pt2/zip_writer.h"

namespace keirin::pt2 {
namespace {

struct Tally {
  int read = 0, refused = 0;
};

void judge(const std::string& bytes, Tally* tally) {
  Result<Pt2File> file = read_pt2(std::as_bytes(std::span(bytes)), "m.pt2");
  if (file.ok()) {
    ++tally->read;
    // What was accepted must be safe to use: every view lies inside its storage.
    for (const auto& [name, model] : file->models)
      for (const auto& [weight_name, w] : model.payload.weights)
        if (w.storage != nullptr && w.num_elements() > 0) {
          int64_t last = w.storage_offset;
          for (size_t i = 0; i < w.sizes.size(); ++i) last += (w.sizes[i] - 1) * w.strides[i];
          ASSERT_LE(static_cast<uint64_t>((last + 1) * dtype_bytes(w.meta.dtype)), w.storage->size()) << weight_name;
        }
    return;
  }
  ++tally->refused;
  const Message& m = file.status().message();
  ASSERT_NE(file.status().code(), Code::k_internal);
  ASSERT_FALSE(m.what.empty());
  ASSERT_TRUE(m.where.starts_with("m.pt2")) << file.status().text();
  ASSERT_EQ(m.instead, "nothing was loaded") << file.status().text();
}

// One to three edits: a changed byte, a removed or repeated piece, a number or word that parsers dislike.
std::string mutate(std::string text, std::mt19937& random) {
  static const char* const kWords[] = {
      "-1",      "9223372036854775807", "9223372036854775808", "1e308", "null",       "true", "\"\"", "[]", "{}", "NaN",
      "\\u0000", "{\"as_none\": true}", "\"as_graph\"",        "oo",    "Integer(0)", "Pow("};
  int edits = 1 + static_cast<int>(random() % 3);
  for (int i = 0; i < edits && !text.empty(); ++i) {
    size_t at = random() % text.size(), length = 1 + random() % 24;
    switch (random() % 5) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text[at] = static_cast<char>(text[at] ^ (1 << (random() % 8)));
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(random() % text.size(), text.substr(at, length));
        break;
      default: {
        size_t digit = text.find_first_of("0123456789", at);
        size_t end = digit == std::string::npos ? digit : text.find_first_not_of("0123456789", digit);
        if (digit == std::string::npos) digit = at, end = at + 1;
        text.replace(digit, end - digit, kWords[random() % std::size(kWords)]);
      }
    }
  }
  return text;
}

TEST(Mutants, EveryTruncationIsRefused) {
  std::string good = test::file_text(test::data_file("fake"));
  ASSERT_GT(good.size(), 1000u);
  Tally tally;
  for (size_t n = 0; n < good.size(); ++n) judge(good.substr(0, n), &tally);
  EXPECT_EQ(tally.read, 0);
}

TEST(Mutants, EveryTruncationOfTheProgramIsRefused) {
  std::vector<test::ZipItem> items = test::unzip(test::file_text(test::data_file("cond")));
  test::ZipItem* model = test::find(items, "models/model.json");
  ASSERT_NE(model, nullptr);
  std::string good = model->content;
  Tally tally;
  for (size_t n = 0; n < good.size(); ++n) {
    model->content = good.substr(0, n);
    judge(test::write_zip(items), &tally);
  }
  EXPECT_EQ(tally.read, 0);
}

TEST(Mutants, OfTheZipBytes) {
  std::mt19937 random(1);
  Tally tally;
  for (const char* name : {"mlp", "tied"}) {
    std::string good = test::file_text(test::data_file(name));
    for (int i = 0; i < 1000; ++i) judge(mutate(good, random), &tally);
  }
  EXPECT_GT(tally.refused, 1000);
}

TEST(Mutants, OfTheJsonInsideASoundZip) {
  std::mt19937 random(2);
  Tally tally;
  for (const char* name : {"mlp", "cond", "structured", "guarded", "tied"}) {
    const std::vector<test::ZipItem> good = test::unzip(test::file_text(test::data_file(name)));
    for (const char* record : {"models/model.json", "weights_config.json", "constants_config.json"})
      for (int i = 0; i < 300; ++i) {
        std::vector<test::ZipItem> items = good;
        test::ZipItem* item = test::find(items, record);
        ASSERT_NE(item, nullptr);
        item->content = mutate(item->content, random);
        judge(test::write_zip(items), &tally);
      }
  }
  // Both happen: a mutant that only breaks JSON syntax would test the parser alone.
  EXPECT_GT(tally.refused, 1000);
  EXPECT_GT(tally.read, 50);
}

}  // namespace
}  // namespace keirin::pt2
