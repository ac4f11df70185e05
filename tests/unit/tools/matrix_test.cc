// SPDX-License-Identifier: Apache-2.0
//
// Stores of the matrix and what is read out of them, without a model: union law and hostile files (S11), the same
// verdict bytes whatever the records went through (S7), labels and exit codes from records, escaped reports.
#include <sys/stat.h>

#include <algorithm>
#include <functional>

#include "tests/support/temp_folder.h"
#include "tests/unit/tools/matrix_records.h"
#include "tools/exits.h"
#include "tools/matrix/machine_class.h"
#include "tools/matrix/report.h"
#include "tools/page/page.h"

namespace keirin::tools::matrix {
namespace {

TEST(MatrixRecords, AreCanonicalAndNamedByTheirBytes) {
  const Record record = make_record("mark", {{"why", "b"}, {"of", "a"}});
  EXPECT_EQ(record.line, R"({"kind":"mark","krn":"matrix/1","of":"a","why":"b"})");
  EXPECT_EQ(record.id.size(), 64u);
  const Result<Record> again = read_record(record.line);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->id, record.id);
  const Result<Record> spaced = read_record(R"({"krn": "matrix/1", "kind": "mark"})");
  ASSERT_TRUE(spaced.ok());
  EXPECT_EQ(spaced->line, R"({"krn": "matrix/1", "kind": "mark"})") << "the bytes that it came with";
}

TEST(MatrixRecords, WhatIsNoneIsRefused) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  for (const std::string& line :
       {std::string("{"), std::string("[1]"), std::string("{}"), std::string(R"({"krn":"other/1"})"),
        std::string(R"({"krn":7})"), "{\"krn\":\"matrix/1\",\"a\":" + deep + "}",
        std::string(R"({"krn":"matrix/1","a":1e999})"), std::string("{\"krn\":\"matrix/1\",\"a\":\"\xff\"}"),
        "{\"krn\":\"matrix/1\",\"a\":\"" + std::string(kMaxRecordBytes, 'x') + "\"}"})
    EXPECT_EQ(read_record(line).status().code(), Code::k_corrupt) << line.substr(0, 60);
}

TEST(MatrixStore, S11UnionWhateverTheOrder) {
  const test::TempFolder temp;
  const fs::path root = temp.path();
  const std::vector<Record> records = sitting_of({Cell{}});
  const std::string unknown_kind = R"({"krn":"matrix/1","kind":"weather","rain":[1,2]})",
                    newer = R"({"krn":"matrix/2","kind":"run","side":"head","new":true})";
  const size_t half = records.size() / 2;
  const std::vector<Record> first(records.begin(), records.begin() + static_cast<std::ptrdiff_t>(half)),
      second(records.begin() + static_cast<std::ptrdiff_t>(half) - 3, records.end());
  write_log(root / "a", "20261124-1.jsonl", lines_of(first) + unknown_kind + "\n");
  write_log(root / "b", "20261124-1.jsonl", lines_of(second) + newer + "\n" + R"({"krn":"matrix/1","ki)");
  write_log(root / "c", "20261123-2.jsonl", newer + "\nnot a record\n" + records[0].line + "\n");
  std::vector<std::string> order = {"a", "b", "c"};
  std::vector<std::string> expected;
  do {
    const fs::path into = root / ("into-" + order[0] + order[1] + order[2]);
    for (const std::string& each : order) {
      const Result<MergeResult> merged = merge(into.string(), {(root / each).string()});
      ASSERT_TRUE(merged.ok()) << merged.status().text();
      EXPECT_EQ(merged->problems.size(), each == "a" ? 0u : 1u);
    }
    for (const fs::directory_entry& file : fs::directory_iterator(into / "log"))
      EXPECT_EQ(file.status().permissions(), fs::perms(0644)) << file.path() << " is there to be read";
    const Store store = read(into);
    EXPECT_TRUE(store.problems().empty()) << "what is not a record is not taken over";
    if (expected.empty()) expected = ids(store);
    EXPECT_EQ(ids(store), expected);
    const Result<MergeResult> again =
        merge(into.string(), {(root / "c").string(), (root / "a").string(), (root / "b").string()});
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->added, 0u) << "twice is once";
    EXPECT_EQ(verdict_bytes(store), verdict_bytes(store_of(records)));
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(expected.size(), records.size() + 2) << "the unknown kind and the newer schema are carried through";
}

TEST(MatrixStore, S11HostileFilesAreToldAndNotRead) {
  const test::TempFolder temp;
  const fs::path root = temp.path();
  write_log(root, "good.jsonl", make_record("mark", {}).line + "\n");
  write_log(root, "torn.jsonl", make_record("mark", {{"of", "x"}}).line);
  write_log(root, "empty.jsonl", "");
  write_log(root, "zeros.jsonl", std::string(4096, '\0') + "\n");
  fs::create_symlink("/etc/passwd", root / "log/link.jsonl");
  ASSERT_EQ(::mkfifo((root / "log/pipe.jsonl").c_str(), 0600), 0);
  fs::create_directory(root / "log/folder.jsonl");
  write_log(root, "large.jsonl", "x");
  fs::resize_file(root / "log/large.jsonl", kMaxLogBytes + 1);
  const Store store = read(root);
  EXPECT_EQ(store.records().size(), 1u);
  std::vector<std::string> told;
  for (const StoreProblem& problem : store.problems()) told.push_back(problem.file);
  EXPECT_EQ(told, (std::vector<std::string>{"folder.jsonl", "large.jsonl", "link.jsonl", "pipe.jsonl", "torn.jsonl",
                                            "zeros.jsonl"}));
  EXPECT_EQ(Store::read((root / "nowhere").string()).status().code(), Code::k_invalid_input);
}

// A log with bytes changed at random: read, judged and reported without harm, whatever it says.
TEST(MatrixStore, S11ChangedBytesDoNoHarm) {
  const test::TempFolder temp;
  const std::string bytes = lines_of(sitting_of({Cell{}}));
  std::mt19937_64 random(11);
  size_t skipped = 0;
  for (int round = 0; round < 300; ++round) {
    std::string changed = bytes;
    for (int i = 0; i < 1 + round % 40; ++i) {
      const char with[] = "0-9eE.,:[]{}\"\n\\\xff\0tn";
      changed[random() % changed.size()] = with[random() % (sizeof(with) - 1)];
    }
    write_log(temp.path(), "changed.jsonl", changed);
    const Store store = read(temp.path());
    skipped += store.problems().size();
    (void)verdict_bytes(store);
    if (const Result<json> report = report_json(store, ""); report.ok())
      (void)(report_text(*report) + report_markdown(*report) + report_junit(*report));
    (void)history_text(history_json(store, judge(store), "", ""));
  }
  EXPECT_GT(skipped, 300u) << "most changes make no record";
  // Fields of wrong types, in records that are well formed.
  const std::vector<json> wrong = {
      nullptr, true, -1, 1e300, "x", json::array({1, "y", nullptr}), json::object({{"a", 1}})};
  for (const Record& record : sitting_of({Cell{}})) {
    if (record.is("sample") && record.whole("block") > 0) continue;
    for (const auto& [name, unused] : record.fields.items())
      for (const json& value : wrong) {
        if (name == "krn") continue;
        std::vector<Record> records = sitting_of({Cell{}});
        json fields = record.fields;
        fields[name] = value;
        for (Record& each : records)
          if (each.id == record.id) each = *read_record(fields.dump());
        const Store store = store_of(records);
        (void)verdict_bytes(store);
        if (const Result<json> report = report_json(store, ""); report.ok())
          (void)(report_text(*report) + report_markdown(*report) + report_junit(*report));
      }
  }
}

TEST(MatrixStore, AWriterTakesNoFileOfAnother) {
  const test::TempFolder temp;
  const std::string folder = temp.path() + "/store";
  Result<LogWriter> one = LogWriter::begin(folder, "id"), two = LogWriter::begin(folder, "id");
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(two.status().code(), Code::k_exhausted);
  ASSERT_TRUE(one->append({make_record("mark", {{"of", "1"}}), make_record("mark", {{"of", "2"}})}).ok());
  EXPECT_EQ(read(folder).records().size(), 2u);
}

TEST(MatrixJudge, S7TheSameBytesShuffledDoubledAndSplit) {
  const std::vector<Record> records = sitting_of(
      {{.ratio = 1.06}, {.item = "gcn/small/f32/infer/single/default"}, {.variant = "compiled:cpu", .ratio = 0.9}});
  const std::string expected = verdict_bytes(store_of(records));
  EXPECT_NE(expected.find("\"regressed\""), std::string::npos);
  EXPECT_NE(expected.find("\"improved\""), std::string::npos);
  EXPECT_NE(expected.find("\"unchanged\""), std::string::npos);
  std::mt19937_64 random(5);
  for (int round = 0; round < 5; ++round) {
    const test::TempFolder temp;
    std::vector<Record> shuffled = records;
    shuffled.insert(shuffled.end(), records.begin(), records.end());
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    for (int part = 0; part < 4; ++part) {
      std::vector<Record> some;
      for (size_t i = static_cast<size_t>(part); i < shuffled.size(); i += 4) some.push_back(shuffled[i]);
      write_log(temp.path(), std::to_string(part) + ".jsonl", lines_of(some));
    }
    EXPECT_EQ(verdict_bytes(read(temp.path())), expected);
  }
}

// Label and exit code of a sitting of one cell.
std::pair<std::string, int> outcome(const Cell& cell, const std::string& purpose = "compare") {
  const Result<json> report = report_json(store_of(sitting_of({cell}, purpose)), "");
  EXPECT_TRUE(report.ok());
  return {(*report)["cells"][0]["label"].get<std::string>(), exit_code(*report)};
}

TEST(MatrixJudge, LabelsAndExitCodes) {
  using Outcome = std::pair<std::string, int>;
  EXPECT_EQ(outcome({}), Outcome("unchanged", kOk));
  EXPECT_EQ(outcome({.ratio = 1.06}), Outcome("regressed", kFailed));
  EXPECT_EQ(outcome({.ratio = 0.94}), Outcome("improved", kOk));
  EXPECT_EQ(outcome({.ratio = 1.06, .confirm = false}), Outcome("inconclusive", kUndecided))
      << "one stage calls nothing";
  EXPECT_EQ(outcome({.noise = 0.1}), Outcome("inconclusive", kUndecided));
  EXPECT_EQ(outcome({.ratio = 1.5, .gate = 0.06}), Outcome("regressed", kOk)) << "a gate above 5 % only informs";
  EXPECT_EQ(outcome({.gate = nullptr}), Outcome("inconclusive", kUndecided)) << "without a gate nothing is shown";
  EXPECT_EQ(outcome({.status = "wrong_result", .at_fault = "head"}), Outcome("invalid", kFailed));
  EXPECT_EQ(outcome({.status = "crashed", .at_fault = "head"}), Outcome("invalid", kFailed));
  EXPECT_EQ(outcome({.status = "crashed", .at_fault = "base"}), Outcome("invalid", kUndecided))
      << "not the fault of what is judged";
  EXPECT_EQ(outcome({.status = "contended"}), Outcome("invalid", kUndecided));
  EXPECT_EQ(outcome({.status = "not_run"}), Outcome("not_run", kUndecided)) << "nothing was measured: no pass";
  EXPECT_EQ(outcome({.status = "lost", .at_fault = "head"}), Outcome("invalid", kFailed)) << "what base had, head has not";
  EXPECT_EQ(outcome({.ratio = 1.06}, "run"), Outcome("regressed", kFailed)) << "auto lost to eager: G1";
  EXPECT_EQ(outcome({.variant = "peer:x", .status = "wrong_result", .at_fault = "head"}, "run"), Outcome("invalid", kOk))
      << "a peer's wrong numbers are not ours";
  EXPECT_EQ(outcome({.variant = "compiled:cpu", .ratio = 1.06}, "run"), Outcome("regressed", kOk))
      << "what was not chosen may be slow";
}

TEST(MatrixJudge, CountsDecideWhereTimesInform) {
  const json counts = {{"steps", 2}, {"peak_bytes", 1000}, {"nodes", 7}};
  const auto reported = [&](const std::function<void(Cell*)>& change, const std::string& purpose = "compare") {
    Cell cell{.ratio = 1.2, .confirm = false, .fitness = "counts", .base_counts = counts, .head_counts = counts};
    change(&cell);
    const Result<json> report = report_json(store_of(sitting_of({cell}, purpose)), "");
    EXPECT_TRUE(report.ok());
    return *report;
  };
  const auto label = [](const json& report) { return report["cells"][0]["label"].get<std::string>(); };

  const json same = reported([](Cell* cell) { cell->head_counts["nodes"] = 8, cell->head_counts["peak_bytes"] = 1010; });
  EXPECT_EQ(label(same), "unchanged") << "nodes say nothing, and so much more memory is none";
  EXPECT_EQ(exit_code(same), kOk);
  EXPECT_TRUE(same["cells"][0]["gated"].get<bool>());

  const json more = reported([](Cell* cell) { cell->head_counts["steps"] = 3, cell->head_counts["peak_bytes"] = 900; });
  EXPECT_EQ(label(more), "regressed") << "what is better does not pay for what is worse";
  EXPECT_EQ(exit_code(more), kFailed);
  EXPECT_EQ(more["cells"][0]["reasons"], json({"steps 2 -> 3", "peak_bytes 1000 -> 900"}));
  EXPECT_NE(report_junit(more).find("<failure"), std::string::npos);

  EXPECT_EQ(label(reported([](Cell* cell) { cell->head_counts["peak_bytes"] = 989; })), "improved");
  EXPECT_EQ(label(reported([](Cell* cell) { cell->status = "contended"; })), "unchanged") << "a count is not disturbed";
  EXPECT_EQ(exit_code(reported([](Cell* cell) { cell->status = "crashed", cell->at_fault = "head"; })), kFailed);
  for (const json& report : {reported([](Cell* cell) { cell->head_candidate = "cpu/other"; }),
                             reported([](Cell* cell) { cell->head_counts = {{"nodes", 7}}; }),
                             reported([](Cell* cell) { cell->head_counts = {{"steps", "2"}, {"peak_bytes", -1}}; })}) {
    EXPECT_EQ(label(report), "inconclusive");
    EXPECT_EQ(exit_code(report), kUndecided) << "nothing was shown";
  }
  for (const char* exact : {"launches", "allocations", "spilled", "kernels"}) {
    const auto with = [&](int base, int head) {
      return label(reported([&](Cell* cell) { cell->base_counts[exact] = base, cell->head_counts[exact] = head; }));
    };
    EXPECT_EQ(with(1000, 1001), "regressed") << exact;
    EXPECT_EQ(with(1000, 999), "improved") << exact;
    EXPECT_EQ(with(0, 0), "unchanged") << exact;
  }
  const json run = reported([](Cell* cell) { cell->head_counts["steps"] = 3; }, "run");
  EXPECT_FALSE(run["cells"][0]["gated"].get<bool>()) << "eager's counts are no level for a plan's";
}

TEST(MatrixJudge, StartsAreBlocksOfOneProcessASideWithAGateOfTenPerCent) {
  using Outcome = std::pair<std::string, int>;
  for (const Measure& measure : kStartTimes) {
    const auto start = [&](double ratio, double noise = 0.02, json gate = 0.10) {
      return Cell{.item = "mlp/small/f32/infer/" + std::string(measure.scenario) + "/default",
                  .ratio = ratio, .noise = noise, .gate = std::move(gate)};
    };
    EXPECT_EQ(outcome(start(1.3)), Outcome("regressed", kFailed)) << measure.scenario;
    EXPECT_EQ(outcome(start(0.7)), Outcome("improved", kOk)) << measure.scenario;
    EXPECT_EQ(outcome(start(1)), Outcome("unchanged", kOk)) << measure.scenario;
    EXPECT_EQ(outcome(start(1, 0.3)), Outcome("inconclusive", kUndecided)) << measure.scenario;
    EXPECT_EQ(outcome(start(1.3, 0.02, nullptr)), Outcome("inconclusive", kUndecided)) << measure.scenario;
    EXPECT_EQ(outcome(start(2, 0.02, 0.35)), Outcome("regressed", kOk)) << "a gate above 30 % only informs";
    const json report = *report_json(store_of(sitting_of({start(1.3)})), "");
    EXPECT_EQ(report["cells"][0]["blocks"], 16);
    EXPECT_NE(report["cells"][0]["again"].get<std::string>().find(" --cold"), std::string::npos);
  }
  EXPECT_EQ(outcome({.item = "mlp/small/f32/infer/cold-lunch/default", .ratio = 1.05}), Outcome("regressed", kFailed))
      << "calls, as any other";
  EXPECT_FALSE(is_start("cold-start"));
  EXPECT_FALSE(is_start("a/b/c/d/cold-start-2/default"));
}

// What was compiled for a device that is not here ran nowhere: no time, no pass, whatever the records say; its code is counted.
TEST(MatrixJudge, CodeIsNoAnswer) {
  const json code = {{"kernels", 5}, {"spilled", 0}, {"nodes", 9}, {"nodes_eager", 2}, {"launches", 6}};
  const auto reported = [&](const char* purpose, const std::function<void(Cell*)>& change) {
    Cell cell{.variant = "compiled:rocm", .fitness = "compile", .base_counts = code, .head_counts = code};
    change(&cell);
    return *report_json(store_of(sitting_of({cell}, purpose)), "");
  };
  const json run = reported("run", [](Cell*) {});
  EXPECT_EQ(run["cells"][0]["label"], "not_run");
  EXPECT_EQ(run["cells"][0]["reasons"], json({"compiled for  and not run: 5 kernels, 0 registers spilled, 2 of 9 nodes left to eager"}));
  EXPECT_EQ(run["totals"], (json{{"not_run", 1}}));
  EXPECT_NE(report_junit(run).find("<skipped"), std::string::npos);
  EXPECT_NE(report_text(run).find("compiled for a device that is not here"), std::string::npos);
  EXPECT_EQ(exit_code(run), kOk) << "nothing was asked of it";
  const json broken = reported("run", [](Cell* cell) { cell->status = "failed", cell->at_fault = "head"; });
  EXPECT_EQ(broken["cells"][0]["label"], "invalid");
  EXPECT_EQ(exit_code(broken), kFailed);
  EXPECT_EQ(exit_code(reported("compare", [](Cell*) {})), kOk);
  EXPECT_EQ(exit_code(reported("compare", [](Cell* cell) { cell->head_counts["spilled"] = 1; })), kFailed);
  EXPECT_EQ(exit_code(reported("compare", [](Cell* cell) { cell->head_counts["nodes_eager"] = 3; })), kFailed) << "refused";
  EXPECT_EQ(gate_from(judge(store_of(sitting_of({{.fitness = "compile"}}, "selfcheck"))), "m", 0, "a", "auto"), std::nullopt);
}

// The noise of calls says nothing of the noise of starts, nor the other way round.
TEST(MatrixJudge, GatesOfStartsComeFromStarts) {
  const std::string item = "mlp/small/f32/infer/cold-compile/default";
  std::vector<Record> records;
  for (int i = 0; i < 8; ++i)
    for (const Record& record :
         sitting_of({{.item = item, .sitting = "self" + std::to_string(i), .noise = 0.2, .gate = nullptr}}, "selfcheck", i))
      records.push_back(record);
  const std::vector<Verdict> verdicts = judge(store_of(records));
  const std::optional<double> gate = gate_from(verdicts, "m", 0, item, "auto");
  ASSERT_TRUE(gate);
  EXPECT_GT(*gate, 0.10);
  EXPECT_FALSE(gate_from(verdicts, "m", 0, Cell().item, "auto"));
  EXPECT_FALSE(gate_from(verdicts, "m", 0, "mlp/small/f32/infer/cold-start/default", "auto"));
}

TEST(MatrixJudge, AKilledSittingShowsWhatItDidNotReach) {
  std::vector<Record> records = sitting_of({{}, {.item = "gcn/small/f32/infer/single/default"}});
  records.resize(1 + 2 + 48);  // the first cell
  const Result<json> report = report_json(store_of(records), "");
  ASSERT_TRUE(report.ok());
  EXPECT_EQ((*report)["totals"], (json{{"unchanged", 1}, {"not_run", 1}}));
  // Another shard measured it: the cell as it was measured, whichever sitting was later.
  for (const Record& record :
       sitting_of({{.item = "gcn/small/f32/infer/single/default", .sitting = "s0"}}, "compare", 0.5))
    records.push_back(record);
  EXPECT_EQ((*report_json(store_of(records), ""))["totals"], (json{{"unchanged", 2}}));
  EXPECT_EQ((*report_json(store_of(records), "s0"))["cells"].size(), 1u);
  EXPECT_EQ(report_json(store_of(records), "s9").status().code(), Code::k_invalid_input);
  EXPECT_EQ((*report_json(store_of(records), "", "x86"))["totals"], (json{{"unchanged", 2}}));
  EXPECT_EQ(report_json(store_of(records), "", "arm").status().code(), Code::k_invalid_input);
}

// A ratio over "the better of eager and replay" is there where replay was tried: on a GPU as eager's recording.
TEST(MatrixJudge, OverTheBaselineOnlyWhereReplayWasTried) {
  const auto rows = [](const Cell& replay, const std::string& device) {
    std::vector<Record> records = sitting_of({replay, {.variant = "auto", .ratio = 0.5}}, "run");
    json sitting = records[0].fields;
    sitting["device"] = device;
    records[0] = make_record("sitting", sitting);
    return (*report_json(store_of(records), ""))["snapshot"];
  };
  const auto replay = [](const std::string& answers) { return Cell{.variant = "replay", .head_candidate = answers}; };
  EXPECT_NEAR(rows(replay("replay"), "cpu")[0]["over_baseline"].get<double>(), 2, 0.01);
  EXPECT_NEAR(rows(replay("eager+launch_replay"), "cuda")[0]["over_baseline"].get<double>(), 2, 0.01);
  EXPECT_FALSE(rows(replay("replay"), "cuda:1")[0].contains("over_baseline")) << "launches that nobody recorded are no baseline of a GPU";
  EXPECT_TRUE(rows({.variant = "replay", .status = "not_run", .head_candidate = ""}, "cuda")[0].contains("over_baseline"))
      << "what cannot be recorded is no baseline";
  const json alone = rows({.variant = "compiled:cpu"}, "cpu");
  EXPECT_FALSE(alone[0].contains("over_baseline")) << "nobody asked for replay";
  EXPECT_NEAR(alone[0]["over_eager"].get<double>(), 2, 0.01);
}

TEST(MatrixJudge, GatesComeFromSelfchecksOfThisMachine) {
  std::vector<Record> records;
  for (int i = 0; i < 8; ++i)
    for (const Record& record :
         sitting_of({{.sitting = "self" + std::to_string(i), .noise = 0.02, .gate = nullptr}}, "selfcheck", i))
      records.push_back(record);
  const std::vector<Verdict> verdicts = judge(store_of(records));
  const std::string item = Cell().item;
  const std::optional<double> own = gate_from(verdicts, "m", 0, item, "auto");
  ASSERT_TRUE(own);
  EXPECT_GT(*own, 0.008);
  EXPECT_LT(*own, 0.04);
  EXPECT_EQ(gate_from(verdicts, "m", 0, "other", "auto"), own) << "the device's";
  EXPECT_FALSE(gate_from(verdicts, "m", 2, item, "auto")) << "with other threads the noise is another";
  EXPECT_FALSE(gate_from(verdicts, "another machine", 0, item, "auto"));
}

TEST(MatrixClass, OfProcessorsAndOfDevices) {
  json machine = {{"arch", "x86_64"}, {"flags", "fpu avx2 avx512f hypervisor"}, {"cores", 2}};
  EXPECT_EQ(class_of(machine), "x86-avx512-2c-vm");
  EXPECT_EQ(class_of({{"arch", "aarch64"}, {"flags", ""}, {"cores", 16}}), "aarch64-16c");
  EXPECT_EQ(class_of({{"arch", "aarch64"}, {"flags", "fp asimd sve"}, {"cores", 16}}), "aarch64-16c");
  EXPECT_EQ(class_of({{"arch", "aarch64"}, {"flags", "fpu sse2 avx2 hypervisor"}, {"cores", 2}}), "aarch64-2c-emulated")
      << "the flags are those of the machine below";
  machine["device"] = {{"name", "cuda:1"}, {"model", "NVIDIA H100 80GB HBM3"}, {"arch", "sm_90"}};
  EXPECT_EQ(class_of(machine), "cuda-sm_90-h100-80gb-hbm3") << "whatever its number and the processor beside it";
  machine["device"] = {{"name", "rocm:0"}, {"model", "AMD Instinct MI300X"}, {"arch", "gfx942"}};
  EXPECT_EQ(class_of(machine), "rocm-gfx942-instinct-mi300x");
  machine["device"] = {{"name", "imagined"}, {"arch", "gfx1100"}};
  EXPECT_EQ(class_of(machine), "imagined-gfx1100");
  machine["device"] = "cuda";  // records come from anywhere
  EXPECT_EQ(class_of(machine), "x86-avx512-2c-vm");
}

TEST(MatrixReport, ACutOffSittingIsNoPass) {
  std::vector<Record> records = sitting_of({{}, {.item = "gcn/small/f32/infer/single/default"}});
  records.resize(1 + 2 + 48);  // the first cell
  EXPECT_EQ(exit_code(*report_json(store_of(records), "")), kUndecided);
}

TEST(MatrixReport, GoogleBenchmarkHasASlotARow) {
  const Result<json> report = report_json(store_of(sitting_of({{.ratio = 1.06}})), "");
  ASSERT_TRUE(report.ok());
  const json head = json::parse(report_google_benchmark(*report, true)),
             base = json::parse(report_google_benchmark(*report, false));
  ASSERT_EQ(head["benchmarks"].size(), 49u) << "two slots of head in each of 24 fresh blocks, and their median";
  const json& median = head["benchmarks"].back();
  EXPECT_EQ(median["name"], "mlp/small/f32/infer/single/default/auto_median");
  EXPECT_EQ(median["run_type"], "aggregate");
  EXPECT_NEAR(median["real_time"].get<double>() / base["benchmarks"].back()["real_time"].get<double>(), 1.06, 0.01);
  EXPECT_EQ(head["benchmarks"][3]["repetition_index"], 3);
}

TEST(MatrixReport, OtherThreadsAreAnotherReport) {
  std::vector<Record> records = sitting_of({{.sitting = "s1"}}, "compare", 1);
  std::vector<Record> other =
      sitting_of({{.item = "gcn/small/f32/infer/single/default", .sitting = "s2"}}, "compare", 2);
  json fields = other[0].fields;
  fields["threads"] = 1;
  other[0] = make_record("sitting", fields);
  records.insert(records.end(), other.begin(), other.end());
  EXPECT_EQ((*report_json(store_of(records), ""))["cells"].size(), 1u);
}

// What one host called slower, and what another that was asked about it says: the label of the cell after the merge, and the exit code.
std::pair<std::string, int> after_second(double ratio, const std::string& machine) {
  std::vector<Record> records = sitting_of({{.sitting = "s1", .ratio = 1.06}}, "compare", 1);
  std::vector<Record> other = sitting_of({{.sitting = "s2", .ratio = ratio}}, "compare", 2);
  json fields = other[0].fields;
  fields["machine"] = machine, fields["confirms"] = true;
  other[0] = make_record("sitting", fields);
  records.insert(records.end(), other.begin(), other.end());
  const json report = *report_json(store_of(records), "");
  EXPECT_EQ(report["cells"].size(), 1u);
  return {report["cells"][0]["label"], exit_code(report)};
}

TEST(MatrixReport, ASecondHostConfirmsOrDenies) {
  using Outcome = std::pair<std::string, int>;
  EXPECT_EQ(after_second(1.06, "another"), Outcome("regressed", kFailed));
  EXPECT_EQ(after_second(1, "another"), Outcome("inconclusive", kUndecided)) << "one host alone has no say";
  EXPECT_EQ(after_second(0.9, "another"), Outcome("inconclusive", kUndecided));
  EXPECT_EQ(after_second(1, "m"), Outcome("unchanged", kOk)) << "asked again, the same host is not a second one: what it says last counts";

  const json first = *report_json(
      store_of(sitting_of({{.sitting = "s1", .ratio = 1.06}, {.item = "gcn/small/f32/infer/single/default", .sitting = "s1"}})), "");
  const auto asked = changed_cells(first);
  ASSERT_TRUE(asked.ok());
  EXPECT_EQ(*asked, (std::set<std::pair<std::string, std::string>>{{Cell().item, "auto"}}));
  EXPECT_FALSE(changed_cells(json::parse("[1]")).ok());
  EXPECT_TRUE(changed_cells(json::parse(R"({"schema": "keirin/matrix/1", "cells": [1, {"label": 3}]})"))->empty());
}

TEST(MatrixReport, TextsFromElsewhereAreEscaped) {
  const std::string evil = "<script>|`x`\x1b[2J\n\"&";
  const Store store = store_of(sitting_of({{.item = evil, .ratio = 1.06},
                                           {.item = "a", .status = "crashed", .at_fault = "head"},
                                           {.item = "b", .status = "not_run"}}));
  const Result<json> report = report_json(store, "");
  ASSERT_TRUE(report.ok());
  const std::string text = report_text(*report), markdown = report_markdown(*report), junit = report_junit(*report);
  for (const std::string& each : {text, markdown, junit}) EXPECT_EQ(each.find('\x1b'), std::string::npos) << each;
  EXPECT_EQ(markdown.find("<script>"), std::string::npos);
  EXPECT_NE(markdown.find("&lt;script&gt;\\|\\`x\\`"), std::string::npos) << markdown;
  EXPECT_NE(junit.find("tests=\"3\" failures=\"1\" errors=\"1\" skipped=\"1\""), std::string::npos) << junit;
  EXPECT_NE(junit.find("name=\"&lt;script&gt;"), std::string::npos);
  EXPECT_EQ(text.find("  ! a "), text.find("  ! ")) << "worst first: " << text;
}

TEST(MatrixReport, HistoryFindsTheStep) {
  std::vector<Record> records;
  for (int i = 0; i < 20; ++i)
    for (const Record& record :
         sitting_of({{.sitting = "run" + std::to_string(i), .ratio = i < 10 ? 0.5 : 0.55, .noise = 0.0005}}, "run", 1e9 + 86400.0 * i))
      records.push_back(record);
  const std::string text = history_text(history_json(store_of(records), judge(store_of(records)), "", ""));
  EXPECT_NE(text.find("20 sittings, 1 steps"), std::string::npos) << text;
  EXPECT_NE(text.find("<- step of +10.0 %"), std::string::npos) << text;
  EXPECT_EQ(history_text(history_json(store_of(records), judge(store_of(records)), "nothing*", "")),
            "no series: keirin matrix run writes points\n");
}

// What `run` saw of starts is a series too: compiling takes half as long again from the eleventh sitting on.
TEST(MatrixReport, HistoryFindsTheStepOfAStart) {
  std::vector<Record> records;
  for (int i = 0; i < 20; ++i)
    for (Record record : sitting_of({{.sitting = "run" + std::to_string(i)}}, "run", 1e9 + 86400.0 * i)) {
      if (record.is("run")) {
        const bool head = record.text("side") == "head";
        json fields = record.fields;
        if (!head) fields["variant"] = "eager";
        fields["build_ns"] = {90'000'000 + i * 1'000'000, 100'000'000 + i * 100'000, 120'000'000};
        fields["first_ns"] = {2'000'000 + i % 3 * 10'000};
        if (head) fields["cold_ns"] = (i < 10 ? 2e9 : 3e9) * (1 + 0.01 * (i % 4));
        record = make_record("run", fields);
      }
      records.push_back(record);
    }
  // The records above name their sides by ids that the changed fields changed: join them again.
  std::map<std::string, std::string> base_of;
  for (const Record& record : records)
    if (record.is("run") && record.text("side") == "base") base_of[record.text("sitting")] = record.id;
  std::vector<Record> joined;
  for (Record record : records) {
    if (record.is("run") && record.text("side") == "head") {
      json fields = record.fields;
      fields["base"] = base_of[record.text("sitting")];
      record = make_record("run", fields);
      for (int slot = 0; slot < 24; ++slot)
        joined.push_back(make_record("sample", {{"run", slot % 4 == 0 || slot % 4 == 3 ? fields["base"] : json(record.id)},
                                                {"launch", 0}, {"block", slot / 4}, {"slot", slot % 4}, {"measure", "latency_ns"},
                                                {"values", {1'000'000 + slot}}, {"kept", true}}));
    }
    if (!record.is("sample")) joined.push_back(record);
  }
  const Store store = store_of(joined);
  const json history = history_json(store, judge(store), "", "");
  std::map<std::string, size_t> steps;
  for (const json& series : history) {
    EXPECT_EQ(series["points"].size(), 20u) << series["case"];
    steps[series["case"]] = series["steps"].size();
  }
  EXPECT_EQ(steps, (std::map<std::string, size_t>{{"mlp/small/f32/infer/single/default", 0},
                                                  {"mlp/small/f32/infer/cold-compile/default", 1},
                                                  {"mlp/small/f32/infer/cold-call/default", 0}}));
  EXPECT_NE(history_text(history).find("step of +"), std::string::npos);
  EXPECT_EQ(history_json(store, judge(store), "*/cold-compile/*", "").size(), 1u);
}

}  // namespace
}  // namespace keirin::tools::matrix
