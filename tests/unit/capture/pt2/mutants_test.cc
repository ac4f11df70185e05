// SPDX-License-Identifier: Apache-2.0
//
// Damaged files end in a value or a clear Status, never in a crash: every truncation, and deterministic mutants of the
// zip bytes and of the JSON inside a zip that is itself sound. Run under sanitizers to give it teeth.
#include <gtest/gtest.h>

#include "core/capture/pt2/read_pt2.h"
#include "tests/support/mutants.h"
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

TEST(Mutants, EveryTruncationIsRefused) {
  std::string good = test::file_text(test::data_file("fake"));
  ASSERT_GT(good.size(), 1000u);
  Tally tally;
  keirin::test::MalformedInputs inputs;
  inputs.try_truncations(good, [&](const std::string& bytes) { judge(bytes, &tally); });
  EXPECT_EQ(tally.read, 0);
}

TEST(Mutants, EveryTruncationOfTheProgramIsRefused) {
  std::vector<test::ZipItem> items = test::unzip(test::file_text(test::data_file("cond")));
  test::ZipItem* model = test::find(items, "models/model.json");
  ASSERT_NE(model, nullptr);
  Tally tally;
  keirin::test::MalformedInputs inputs;
  inputs.try_truncations(std::string(model->content), [&](const std::string& content) {
    model->content = content;
    judge(test::write_zip(items), &tally);
  });
  EXPECT_EQ(tally.read, 0);
}

TEST(Mutants, OfTheZipBytes) {
  Tally tally;
  keirin::test::MalformedInputs inputs;
  for (const char* name : {"mlp", "tied"})
    inputs.try_mutants(test::file_text(test::data_file(name)), 1000, [&](const std::string& bytes) { judge(bytes, &tally); });
  EXPECT_GT(tally.refused, 1000);
}

TEST(Mutants, OfTheJsonInsideASoundZip) {
  Tally tally;
  keirin::test::MalformedInputs inputs;
  for (const char* name : {"mlp", "cond", "structured", "guarded", "tied"}) {
    const std::vector<test::ZipItem> good = test::unzip(test::file_text(test::data_file(name)));
    for (const char* record : {"models/model.json", "weights_config.json", "constants_config.json"}) {
      std::vector<test::ZipItem> items = good;
      test::ZipItem* item = test::find(items, record);
      ASSERT_NE(item, nullptr);
      inputs.try_mutants(std::string(item->content), 300, [&](const std::string& content) {
        item->content = content;
        judge(test::write_zip(items), &tally);
      });
    }
  }
  // Both happen: a mutant that only breaks JSON syntax would test the parser alone.
  EXPECT_GT(tally.refused, 1000);
  EXPECT_GT(tally.read, 50);
}

}  // namespace
}  // namespace keirin::pt2
