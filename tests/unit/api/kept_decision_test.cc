// SPDX-License-Identifier: Apache-2.0
//
// Decisions that one process leaves to the next, over every option, every environment variable and the settings of
// LibTorch: what was decided under other ones is not taken over, what was decided under the same ones is, and what was
// forced or not verified neither leaves anything nor takes it.
#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "core/api/session.h"
#include "core/cache/cache.h"
#include "core/cache/ledger.h"
#include "core/host/call/device.h"
#include "core/host/guard/quarantine.h"
#include "core/host/plugins.h"
#include "tests/support/option_words.h"
#include "tests/support/others.h"
#include "tests/support/temp_folder.h"

namespace keirin {
namespace {

class KeptDecision : public testing::Test {
 protected:
  KeptDecision() {
    plain_.cache_dir = folder_.path() + "/cache";
    plain_.race_seconds = 0.1;
    plain_.threads = 1;  // 0 would leave what the row before had set; alone, for a race beside other tests is slow
    plain_.memory_limit = 10;
    plain_.interference = &others_;
  }

  static std::unique_ptr<Runtime> open(const Options& options) {
    auto runtime = Runtime::open(options);
    EXPECT_TRUE(runtime.ok()) << runtime.status().text();
    return runtime.ok() ? std::move(*runtime) : nullptr;
  }

  // Whether a process that is started now takes over a decision, where it comes to one.
  static bool taken(const Options& options) { return taken(*open(options), options); }
  static bool taken(Runtime& runtime, const Options& options) {
    auto session = Session::open(runtime, std::string(KEIRIN_SOURCE_DIR) + "/bench/zoo/models/small/mlp.pt2", options);
    EXPECT_TRUE(session.ok()) << session.status().text();
    if (!session.ok()) return false;
    auto inputs = (*session)->example_inputs(1);
    EXPECT_TRUE(inputs.ok()) << inputs.status().text();
    auto report = (*session)->compile(*inputs);
    EXPECT_TRUE(report.ok()) << report.status().text();
    return explain_text(*report).find("decided by an earlier process") != std::string::npos;
  }

  static ModelReport decide(Runtime& runtime, const Options& options) {
    auto session = Session::open(runtime, std::string(KEIRIN_SOURCE_DIR) + "/bench/zoo/models/small/mlp.pt2", options);
    EXPECT_TRUE(session.ok()) << session.status().text();
    auto report = (*session)->compile(*(*session)->example_inputs(1));
    EXPECT_TRUE(report.ok()) << report.status().text();
    return report.ok() ? *report : ModelReport();
  }

  std::vector<LedgerRecord> records() {
    CacheOptions options;
    options.dir = plain_.cache_dir;
    std::vector<LedgerRecord> out;
    for (const std::string& body : Cache(options).bodies(EntryKind::kLedger))
      if (auto record = parse_ledger(body); record.ok()) out.push_back(std::move(*record));
    return out;
  }
  size_t kept() { return records().size(); }

  // The key of the only decision that is kept: CacheKey::text, read.
  static std::optional<CacheKey> key_of_ledger(Cache& cache) {
    for (const EntryInfo& entry : cache.list()) {
      if (entry.kind != EntryKind::kLedger) continue;
      std::istringstream lines(cache.explain(entry.key).value_or(""));
      std::string line;
      std::getline(lines, line);
      CacheKey key;
      while (std::getline(lines, line)) key.add(line.substr(0, line.find('=')), line.substr(line.find('=') + 1));
      EXPECT_EQ(key.hex(), entry.key);
      return key;
    }
    return std::nullopt;
  }

  const test::TempFolder folder_;
  test::Others others_;
  Options plain_;
};

TEST_F(KeptDecision, IsThatOfTheSameOptionsOnly) {
  // These have their own ways of not taking it: no cache, another one, a race by order.
  const std::vector<std::string> elsewhere = {"use_cache", "cache_dir", "measure_again"};
  EXPECT_FALSE(taken(plain_));
  EXPECT_TRUE(taken(plain_));
  ASSERT_EQ(kept(), 1u);
  for (const OptionRow& row : option_rows()) {
    if (row.name == "device") continue;                          // there may be one only
    if (row.name == "buckets" || row.name == "pads") continue;  // the model has no free sizes
    Options other = plain_;
    ASSERT_TRUE(set_option(row, other, test::other_word(row, plain_, folder_.path())).ok()) << row.name;
    const bool is_elsewhere = std::find(elsewhere.begin(), elsewhere.end(), row.name) != elsewhere.end();
    const size_t before = kept();
    EXPECT_EQ(taken(other), !row.decides && !is_elsewhere) << row.name;
    if (row.name == "force" || row.name == "only_candidate" || row.name == "verify" || row.name == "imagine") {
      EXPECT_EQ(kept(), before) << row.name << " left a decision to others";
      EXPECT_FALSE(taken(other)) << row.name;
    } else {
      EXPECT_EQ(kept(), before + row.decides) << row.name;
      EXPECT_TRUE(!row.decides || taken(other)) << row.name << " again";
    }
    EXPECT_TRUE(!row.decides || taken(plain_)) << "after " << row.name;
  }
}

TEST_F(KeptDecision, IsNotMadeByADisturbedRace) {
  const std::unique_ptr<Runtime> runtime = open(plain_);
  const auto decide = [&](bool again, bool disturbed) {
    Options options = plain_;
    options.measure_again = again;
    others_.each_time = disturbed ? 1e12 : 0;
    auto session = Session::open(*runtime, std::string(KEIRIN_SOURCE_DIR) + "/bench/zoo/models/small/mlp.pt2", options);
    auto report = (*session)->compile(*(*session)->example_inputs(1));
    EXPECT_TRUE(report.ok()) << report.status().text();
    EXPECT_EQ(report->disturbed.empty(), !disturbed) << report->disturbed;
    return *report;
  };
  const ModelReport first = decide(false, true);
  EXPECT_EQ(first.chosen, "eager");
  EXPECT_EQ(kept(), 0u) << "nobody else is told";
  const ModelReport quiet = decide(false, false);
  EXPECT_EQ(kept(), 1u);
  const ModelReport again = decide(true, true);
  EXPECT_EQ(again.chosen, quiet.chosen) << "what a quiet machine chose stays";
  EXPECT_EQ(again.chosen_ms, 0) << "but its figures were taken by others";
  EXPECT_TRUE(quiet.chosen == "eager" || again.reasons.at(0).find("the choice is that of an earlier race") != std::string::npos)
      << again.reasons.at(0);
  others_.each_time = 0;
  EXPECT_TRUE(taken(*runtime, plain_)) << "and is still there";
}

// A region that rests, because a worker was killed over it, is left to eager for now. That is nothing to be kept: the next process, and
// this one a moment later, find the region willing.
TEST_F(KeptDecision, IsNotMadeBesideARegionAtRest) {
  const std::string own_cache = plain_.cache_dir;
  plain_.cache_dir = folder_.path() + "/elsewhere";  // what the region is called
  (void)decide(*open(plain_), plain_);
  std::string region;
  for (const LedgerRecord& record : records())
    for (const LedgerCandidate& candidate : record.candidates)
      if (candidate.name == "cpu/all" && candidate.regions.size() == 1) region = candidate.regions[0];
  ASSERT_FALSE(region.empty());
  plain_.cache_dir = own_cache;
  const std::unique_ptr<Runtime> runtime = open(plain_);
  const std::vector<PluginDevice*> devices = runtime->plugins().devices();
  const auto cpu = std::ranges::find(devices, "cpu", &PluginDevice::plugin_name);
  ASSERT_NE(cpu, devices.end());
  const auto knows_plan = [](const ModelReport& report) {
    return std::ranges::any_of(report.candidates, [](const CandidateReport& c) { return c.name == "cpu/all" && c.verified; });
  };
  ModelReport beside;
  for (int tries = 0; tries < 5; ++tries) {  // the rest is a second's at first: on a busy machine it may be over too soon
    runtime->quarantine().rest({"cpu", (*cpu)->plugin_guid(), (*cpu)->plugin_build_id(), region, "krn.compile.claim", "was killed", {}});
    beside = decide(*runtime, plain_);
    if (explain_text(beside).find("at rest: cpu: was killed") != std::string::npos) break;
    for (const EntryInfo& entry : runtime->cache()->list()) runtime->cache()->remove(entry);
  }
  ASSERT_NE(explain_text(beside).find("at rest: cpu: was killed"), std::string::npos) << explain_text(beside);
  EXPECT_FALSE(knows_plan(beside));
  EXPECT_NE(beside.disturbed, "") << "it is to be made again";
  EXPECT_EQ(kept(), 0u) << "a decision without the region is there for good";
  ModelReport later = decide(*runtime, plain_);
  for (int tries = 0; tries < 100 && !knows_plan(later); ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    later = decide(*runtime, plain_);
  }
  EXPECT_TRUE(knows_plan(later)) << explain_text(later);
  EXPECT_EQ(kept(), 1u);
}

// Rows that are taken over say whose plans they are, as those of the process did that raced them: ranges are made of such rows.
TEST_F(KeptDecision, SaysWhosePlansItsRowsAre) {
  EXPECT_FALSE(taken(plain_));
  const std::vector<LedgerRecord> kept = records();
  ASSERT_EQ(kept.size(), 1u);
  std::set<std::string> names;
  for (const LedgerCandidate& candidate : kept[0].candidates) names.insert(candidate.name);
  const ModelReport report = decide(*open(plain_), plain_);
  ASSERT_NE(explain_text(report).find("decided by an earlier process"), std::string::npos) << explain_text(report);
  ASSERT_EQ(report.candidates.size(), names.size());
  ASSERT_TRUE(names.contains("cpu/all"));
  for (const CandidateReport& row : report.candidates) EXPECT_EQ(row.plugin, row.name.starts_with("cpu/") ? "cpu" : "") << row.name;
}

// Whatever the race chose: on a loaded machine, eager's call without its dispatch may.
TEST_F(KeptDecision, IsTakenOverWhateverWasChosen) {
  EXPECT_FALSE(taken(plain_));
  CacheOptions options;
  options.dir = plain_.cache_dir;
  Cache cache(options);
  const std::optional<CacheKey> key = key_of_ledger(cache);
  ASSERT_TRUE(key);
  LedgerRecord record = records().at(0);
  std::set<std::string> names;
  for (const LedgerCandidate& candidate : std::vector(record.candidates)) {
    if (!candidate.verified && candidate.name != "eager") continue;
    names.insert(record.choice = candidate.name);
    ASSERT_TRUE(publish_ledger(cache, *key, record));
    const ModelReport report = decide(*open(plain_), plain_);
    EXPECT_EQ(report.chosen, candidate.name);
    EXPECT_NE(explain_text(report).find("decided by an earlier process"), std::string::npos) << explain_text(report);
  }
  for (const char* name : {"eager", "replay", "cpu/all"}) EXPECT_TRUE(names.contains(name)) << name;
}

TEST_F(KeptDecision, IsThatOfTheSameVariablesOnly) {
  const std::unique_ptr<Runtime> runtime = open(plain_);
  EXPECT_FALSE(taken(*runtime, plain_));
  for (const VariableRow& row : variable_rows()) {
    if (!row.decides || ::getenv(row.name)) continue;
    ::setenv(row.name, "1", 1);
    EXPECT_FALSE(taken(*runtime, plain_)) << row.name;
    ::unsetenv(row.name);
  }
  for (const OptionRow& row : option_rows()) {
    if (row.variable.empty() || !row.decides) continue;
    ::setenv(row.variable.c_str(), row.values.words.size() > 1 ? row.values.words[1].c_str() : "gfx1100", 1);
    EXPECT_FALSE(taken(plain_)) << row.variable;
    ::unsetenv(row.variable.c_str());
  }
  EXPECT_TRUE(taken(plain_));
}

TEST_F(KeptDecision, IsThatOfTheSameSettingsOfLibTorchOnly) {
  at::Context& context = at::globalContext();
  const std::unique_ptr<Runtime> runtime = open(plain_);
  const std::pair<const char*, std::function<void(bool)>> settings[] = {
      {"deterministic", [&](bool on) { context.setDeterministicAlgorithms(on, true); }},
      {"precision of f32 products", [&](bool on) { context.setFloat32MatmulPrecision(on ? "medium" : "highest"); }},
      {"oneDNN", [&](bool on) { context.setUserEnabledMkldnn(!on); }},
      {"flash attention", [&](bool on) { context.setSDPUseFlash(!on); }},
  };
  for (const auto& [name, set] : settings) {
    set(false);  // which may be another one than that nobody has touched
    (void)taken(*runtime, plain_);
    EXPECT_TRUE(taken(*runtime, plain_)) << "before " << name;
    set(true);
    EXPECT_FALSE(taken(*runtime, plain_)) << name;
    set(false);
    EXPECT_TRUE(taken(*runtime, plain_)) << "after " << name;
  }
}

TEST_F(KeptDecision, NamesOfPluginsThatWereNotFoundAreRefused) {
  const std::unique_ptr<Runtime> runtime = open(plain_);
  Options other = plain_;
  other.plugins = {"cpu", "cpuu"};
  const std::string path = std::string(KEIRIN_SOURCE_DIR) + "/bench/zoo/models/small/mlp.pt2";
  for (const Status& status : {Runtime::open(other).status(), Session::open(*runtime, path, other).status()}) {
    EXPECT_EQ(status.code(), Code::k_invalid_input);
    for (const char* part : {"cpuu", "nearest is \"cpu\"", "those found: "})
      EXPECT_NE(status.text().find(part), std::string::npos) << status.text();
  }
}

}  // namespace
}  // namespace keirin
