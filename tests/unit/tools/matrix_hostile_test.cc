// SPDX-License-Identifier: Apache-2.0
//
// Ten hostile stores of the matrix (S11): each is refused, cut to what can be afforded, or shown escaped.
#include "tests/support/temp_folder.h"
#include "tests/unit/tools/matrix_records.h"
#include "tools/exits.h"
#include "tools/matrix/report.h"
#include "tools/page/page.h"

namespace keirin::tools::matrix {
namespace {

// What a page holds between its tags of data.
std::string data_of(const std::string& page) {
  const std::string begin = "type=\"application/json\">";
  const size_t at = page.find(begin), end = page.find("</script>", at);
  return at == std::string::npos ? "" : page.substr(at + begin.size(), end - at - begin.size());
}

// All that is made of a store, so that each of them has looked at what is hostile in it.
std::string all_reports(const Store& store) {
  const Result<json> report = report_json(store, ""), page = page_json(store, "");
  EXPECT_EQ(report.ok(), page.ok());
  std::string out = history_text(history_json(store, judge(store), "", ""));
  if (!report.ok()) return out;
  out += report_text(*report) + report_markdown(*report) + report_junit(*report) +
         report_google_benchmark(*report, true) + report_google_benchmark(*report, false);
  return out + page_html("store", View::kMatrix, *page);
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// 1: names that are markup. The page holds its own two elements of script and no third, and its data reads back as it was.
TEST(MatrixHostile, NamesThatAreMarkup) {
  const std::string evil = "</script><script>alert(1)</script><!--<img src=x onerror=alert(1)>";
  const Store store = store_of(sitting_of({{.item = evil, .variant = "]]>'\"<b>", .ratio = 1.06}}));
  const std::string page = page_html("</title><script>", View::kMatrix, *page_json(store, ""));
  EXPECT_EQ(count(page, "<script"), 2u);
  EXPECT_EQ(count(page, "</script"), 2u);
  EXPECT_EQ(page.find("<img"), std::string::npos);
  EXPECT_EQ(page.find("<!--"), std::string::npos);
  EXPECT_NE(page.find("<title>&lt;/title&gt;&lt;script&gt;</title>"), std::string::npos);
  const json data = json::parse(data_of(page), nullptr, false);
  ASSERT_TRUE(data.is_object());
  EXPECT_EQ(data["reports"][0]["cells"][0]["case"], evil);
  EXPECT_EQ(data["reports"][0]["cells"][0]["shifts"].size(), 36u) << "both stages' blocks";
}

// 2: names that move the cursor, turn the direction of text, or call somebody.
TEST(MatrixHostile, NamesThatAreControls) {
  const std::string evil =
      "a\x1b[2J\xc2\x9b"
      "2J\xe2\x80\xae"
      "txt\xe2\x81\xa6\xef\xbf\xbf\n@somebody \\| [x](http://y)";
  const Store store = store_of(sitting_of({{.item = evil, .ratio = 1.06}}, "run"));
  const std::string all = all_reports(store);
  for (const std::string each : {"\x1b", "\xc2\x9b", "\xe2\x80\xae", "\xe2\x81\xa6", "\xef\xbf\xbf"})
    EXPECT_EQ(all.find(each), std::string::npos) << testing::PrintToString(each);
  const std::string markdown = report_markdown(*report_json(store, ""));
  EXPECT_EQ(markdown.find("@somebody"), std::string::npos) << markdown;
  EXPECT_NE(markdown.find(R"(\\\|)"), std::string::npos) << "a backslash does not undo the escape after it: " << markdown;
  EXPECT_EQ(markdown.find(" [x](http"), std::string::npos) << markdown;
}

// 3: a name that ends the quotes of the command which is offered for repeating the cell.
TEST(MatrixHostile, NamesThatAreCommands) {
  const Store store = store_of(sitting_of({{.item = "a'; rm -rf ~; '", .variant = "$(reboot)"}}));
  EXPECT_EQ((*report_json(store, ""))["cells"][0]["again"],
            R"(keirin matrix compare --base BASE --cases 'a'\''; rm -rf ~; '\''' --variants '$(reboot)')");
}

// 4: records that name others which are not there.
TEST(MatrixHostile, WrongIds) {
  std::vector<Record> records = sitting_of({{.ratio = 1.06}});
  const std::string nobody(64, '0');
  for (Record& record : records)
    if (record.is("run") && record.text("side") == "head") {
      json fields = record.fields;
      fields["base"] = nobody, fields["confirms"] = nobody;
      record = make_record("run", fields);
    }
  for (const char* mark : {"void", "baseline", "step_accepted"})
    records.push_back(make_record("mark", {{"mark", mark}, {"of", std::string(64, '1')}, {"why", "x"}}));
  const Store store = store_of(records);
  const Result<json> report = report_json(store, "");
  ASSERT_TRUE(report.ok());
  EXPECT_EQ((*report)["cells"][0]["blocks"], 0);
  EXPECT_EQ((*report)["cells"][0]["label"], "inconclusive");
  EXPECT_EQ(exit_code(*report), kUndecided);
  (void)all_reports(store);
}

// 5: a line that was changed has another id: the samples of the run that it was belong to nobody.
TEST(MatrixHostile, ChangedLines) {
  const test::TempFolder temp;
  std::string bytes = lines_of(sitting_of({{}}));
  write_log(temp.path(), "a.jsonl", bytes);
  ASSERT_EQ((*report_json(read(temp.path()), ""))["cells"][0]["label"], "unchanged");
  const std::string line = "\"side\":\"head\"";
  bytes.insert(bytes.find(line), "\"seen\":1,");
  write_log(temp.path(), "a.jsonl", bytes);
  const json cell = (*report_json(read(temp.path()), ""))["cells"][0];
  EXPECT_EQ(cell["label"], "inconclusive");
  EXPECT_EQ(cell["blocks"], 0);
}

// 6: one run with more blocks than a pair ever has. Intervals take the square of their number.
TEST(MatrixHostile, MoreBlocksThanAPairHas) {
  std::vector<Record> records = sitting_of({{}});
  std::string base, head;
  for (const Record& record : records)
    if (record.is("run")) (record.text("side") == "base" ? base : head) = record.id;
  for (int block = 100; block < 10'000; ++block)
    for (int slot = 0; slot < 4; ++slot)
      records.push_back(make_record("sample", {{"run", slot % 3 ? head : base},
                                               {"launch", block},
                                               {"block", block},
                                               {"slot", slot},
                                               {"measure", "latency_ns"},
                                               {"values", {1000}},
                                               {"kept", true}}));
  EXPECT_EQ((*report_json(store_of(records), ""))["cells"][0]["blocks"], kMaxBlocks);
}

// 7: values, times and gates that no sitting writes.
TEST(MatrixHostile, NumbersThatCannotBe) {
  for (const json& number : {json(1e308), json(-1e308), json(5e-324), json(uint64_t{18446744073709551615u}), json(-1),
                             json("x"), json()}) {
    std::vector<Record> records = sitting_of({{.gate = number}}, "run", 1e9);
    for (Record& record : records) {
      json fields = record.fields;
      for (const char* field : {"time", "gate", "cold_ns", "launch", "block", "slot", "threads"})
        if (fields.contains(field)) fields[field] = number;
      for (const char* field : {"values", "build_ns", "first_ns", "calls_to_settle", "settle_ns"})
        fields[field] = json::array({number, number});
      fields["counts"] = {{"nodes", number}, {"x", {1}}};
      record = make_record(record.text("kind"), fields);
    }
    (void)all_reports(store_of(records));
  }
  EXPECT_EQ((*report_json(store_of(sitting_of({{.gate = -1}})), ""))["cells"][0]["gate"], json())
      << "no gate is below nothing";
}

// 8: a huge store. Files are sparse here: a size is enough to be refused.
TEST(MatrixHostile, MoreThanAStoreMayHold) {
  const test::TempFolder temp;
  const fs::path root = temp.path();
  write_log(root, "a.jsonl", make_record("mark", {}).line + "\n");
  write_log(root, "b.jsonl", "x");
  fs::resize_file(root / "log/b.jsonl", kMaxLogBytes + 1);
  const Store store = read(root);
  EXPECT_EQ(store.records().size(), 1u);
  ASSERT_EQ(store.problems().size(), 1u);
  EXPECT_NE(store.problems()[0].what.find(std::to_string(kMaxLogBytes)), std::string::npos);
  // Each fits alone; together they do not.
  Result<Store> bounded = Store::read(root.string(), 10);
  ASSERT_TRUE(bounded.ok());
  EXPECT_TRUE(bounded->records().empty());
  EXPECT_EQ(bounded->problems().size(), 2u);
}

// 9: a series longer than anybody's. Change points take the square of it.
TEST(MatrixHostile, AnEndlessSeries) {
  std::vector<Record> records;
  for (int i = 0; i < 1500; ++i) {
    const std::string name = "run" + std::to_string(i);
    records.push_back(make_record(
        "sitting",
        {{"sitting", name}, {"purpose", "run"}, {"time", 1e9 + i}, {"class", "x86"}, {"fitness", "timing"}}));
    json fields = {{"sitting", name}, {"case", "a"}, {"variant", "auto"}, {"stage", "screen"}, {"side", "base"}};
    const Record base = make_record("run", fields);
    fields.update({{"side", "head"}, {"base", base.id}, {"status", "ok"}, {"gate", 0.01}});
    const Record head = make_record("run", fields);
    records.push_back(base), records.push_back(head);
    for (int slot = 0; slot < 4; ++slot)
      records.push_back(make_record("sample", {{"run", slot % 3 ? head.id : base.id},
                                               {"launch", 0},
                                               {"block", 0},
                                               {"slot", slot},
                                               {"measure", "latency_ns"},
                                               {"values", {1000 + i % 7}},
                                               {"kept", true}}));
  }
  const json history = history_json(store_of(records), judge(store_of(records)), "", "");
  ASSERT_EQ(history.size(), 1u);
  EXPECT_EQ(history[0]["points"].size(), 1000u);
  EXPECT_EQ(history[0]["points"].back()["time"], 1e9 + 1499) << "the newest ones";
}

// 10: a void record counts for nothing: no failure, no pass, no point, no gate.
TEST(MatrixHostile, VoidCountsForNothing) {
  for (const char* part : {"run", "sitting"}) {
    std::vector<Record> records = sitting_of({{.ratio = 1.06}}, "run", 1e9);
    std::string id;
    for (const Record& record : records)
      if (id.empty() && record.is(part) && (record.is("sitting") || record.text("side") == "head")) id = record.id;
    EXPECT_EQ(exit_code(*report_json(store_of(records), "")), kFailed);
    records.push_back(make_record("mark", {{"mark", "void"}, {"of", id}, {"why", "the fan was off"}}));
    const Result<json> report = report_json(store_of(records), "");
    EXPECT_EQ((*report)["cells"][0]["label"], "invalid");
    EXPECT_EQ((*report)["cells"][0]["reasons"].back(), "declared void: the fan was off");
    EXPECT_EQ(exit_code(*report), kUndecided);
    EXPECT_TRUE(history_json(store_of(records), judge(store_of(records)), "", "").empty());
  }
}

}  // namespace
}  // namespace keirin::tools::matrix
