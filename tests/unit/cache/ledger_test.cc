// SPDX-License-Identifier: Apache-2.0
//
// A ledger may cost speed, never correctness: what is not exactly a record is none, and what was measured under another stack
// is stale.
#include "core/cache/ledger.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <filesystem>

#include "tests/support/mutants.h"
#include "tests/support/temp_folder.h"

namespace keirin {
namespace {

LedgerRecord sample() {
  LedgerRecord r;
  r.choice = "cpu/all";
  r.weights = {{"00", 1e-7, 2e-7, true}, {"11", 3e-7, 2e-7, false}};
  r.fingerprints = {{"plugin", "cpu 0.1.0 abc"}, {"threads", "2"}};
  LedgerCandidate c;
  c.name = "cpu/all";
  c.reason = "faster";
  c.note = "1.5x";
  c.verified = true;
  c.gain = 1.5;
  c.gain_low = 1.4;
  c.gain_high = 1.6;
  c.blocks = 10;
  c.milliseconds = 2.25;
  c.max_error = 1e-7;
  c.eager_error = 2e-7;
  c.regions = {"00ff"};
  c.repaired = true;
  r.candidates = {c};
  r.environment = {{"load", "0.1"}};
  r.pays_back_after_calls = 6600;
  r.step_us = {12.5, 0, 3};
  return r;
}

TEST(Ledger, TextRoundTrip) {
  const Result<LedgerRecord> back = parse_ledger(ledger_text(sample()));
  ASSERT_TRUE(back.ok()) << back.status().text();
  EXPECT_EQ(*back, sample());
}

TEST(Ledger, WhatIsNoRecordIsRefused) {
  const std::string text = ledger_text(sample());
  test::MalformedInputs inputs;
  inputs.try_truncations(text.substr(0, text.size() - 2),
                         [](const std::string& cut) { EXPECT_EQ(parse_ledger(cut).status().code(), Code::k_corrupt); });
  for (const auto& [from, to] : {std::pair<std::string, std::string>{"\"schema\": 4", "\"schema\": 3"},
                                 {"\"choice\": \"cpu/all\"", "\"choice\": \"cuda/all\""},
                                 {"\"verified\": true", "\"verified\": false"},
                                 {"\"verified\": true", "\"verified\": 1"},
                                 {"\"candidates\": [", "\"candidates\": [7,"}}) {
    std::string changed = text;
    ASSERT_NE(changed.find(from), std::string::npos) << from;
    changed.replace(changed.find(from), from.size(), to);
    EXPECT_FALSE(parse_ledger(changed).ok()) << to;
  }
}

TEST(Ledger, DamageIsRefusedOrIsARecordThatCanBeWritten) {
  int refused = 0, read = 0;
  test::MalformedInputs inputs;
  inputs.try_mutants(ledger_text(sample()), 1000, [&](const std::string& text) {
    const Result<LedgerRecord> record = parse_ledger(text);
    if (!record.ok()) {
      ++refused;
      ASSERT_EQ(record.status().code(), Code::k_corrupt);
      return;
    }
    ++read;
    const Result<LedgerRecord> again = parse_ledger(ledger_text(*record));
    ASSERT_TRUE(again.ok() && *again == *record) << text;
  });
  EXPECT_GT(refused, 100);
  EXPECT_GT(read, 30);
}

// Of one graph, whatever weights it was judged with: the last of them stay, each once.
TEST(Ledger, KnowsWhichWeightsWereJudged) {
  LedgerRecord r = sample();
  EXPECT_EQ(weights_of(r, "11")->max_error, 3e-7);
  EXPECT_EQ(weights_of(r, "22"), nullptr);
  add_weights(r, {"00", 5e-7, 1e-7, false});
  ASSERT_EQ(r.weights.size(), 2u);
  EXPECT_EQ(r.weights.back().stamp, "00") << "it came last again";
  for (size_t i = 0; i < kMostLedgerWeights; ++i) add_weights(r, {"w" + std::to_string(i), 0, 0, true});
  EXPECT_EQ(r.weights.size(), kMostLedgerWeights);
  EXPECT_EQ(weights_of(r, "11"), nullptr);
  EXPECT_NE(weights_of(r, "w0"), nullptr);
  EXPECT_TRUE(parse_ledger(ledger_text(r)).ok());
}

// A record of a disturbed race is nobody's but this process's.
TEST(Ledger, ADisturbedRecordIsNotWritten) {
  const test::TempFolder folder;
  CacheOptions options;
  options.dir = folder.path() + "/c";
  Cache cache(options);
  const CacheKey key = CacheKey().add("graph", "g");
  LedgerRecord r = sample();
  r.disturbed = "others had the processor";
  publish_ledger(cache, key, r);
  EXPECT_EQ(read_ledger(cache, key, r.fingerprints, nullptr), r);
  EXPECT_FALSE(read_ledger(*std::make_unique<Cache>(options), key, r.fingerprints, nullptr));
  publish_ledger(cache, key, sample());
  EXPECT_EQ(read_ledger(*std::make_unique<Cache>(options), key, r.fingerprints, nullptr), sample());
}

TEST(Ledger, FiguresAreClipped) {
  LedgerRecord r = sample();
  r.candidates[0].gain = 1e300;
  r.candidates[0].milliseconds = -5;
  r.candidates[0].max_error = std::nan("");
  r.step_us = {-1, 5};
  const Result<LedgerRecord> back = parse_ledger(ledger_text(r));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->candidates[0].gain, 1e6);
  EXPECT_EQ(back->candidates[0].milliseconds, 0);
  EXPECT_EQ(back->candidates[0].max_error, 0);
  EXPECT_EQ(back->step_us, (std::vector<double>{0, 5}));
}

TEST(Ledger, AnotherStackMakesItStale) {
  const test::TempFolder folder;
  CacheOptions options;
  options.dir = folder.path() + "/c";
  Cache cache(options);
  const CacheKey key = CacheKey().add("graph", "g");
  ASSERT_TRUE(publish_ledger(cache, key, sample()));
  std::map<std::string, std::string> stack = sample().fingerprints;
  std::string stale;
  EXPECT_EQ(read_ledger(cache, key, stack, &stale), sample());
  stack["threads"] = "16";
  EXPECT_FALSE(read_ledger(cache, key, stack, &stale));
  EXPECT_EQ(stale, "threads: 2 -> 16");
  stack = sample().fingerprints;
  stack["new"] = "1";
  EXPECT_FALSE(read_ledger(cache, key, stack, &stale));
  EXPECT_EQ(stale, "new: nothing -> 1");
  stack = sample().fingerprints;
  stack.erase("threads");
  EXPECT_FALSE(read_ledger(cache, key, stack, &stale));
  EXPECT_EQ(stale, "a fingerprint is gone");
  cache.publish(EntryKind::kLedger, key, "{}");
  EXPECT_FALSE(read_ledger(cache, key, sample().fingerprints, &stale));
  EXPECT_TRUE(cache.list().empty()) << "a record that does not parse is deleted";
}

}  // namespace
}  // namespace keirin
