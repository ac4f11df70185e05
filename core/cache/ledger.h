// SPDX-License-Identifier: Apache-2.0
//
// What was measured and chosen for one model on one device, as JSON in the cache: so that the next process answers compiled at
// once. It may cost speed, never correctness: a record that does not parse, or whose fingerprints differ, is as good as none.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/cache/cache.h"

namespace keirin {

struct LedgerCandidate {
  std::string name;    // "cpu/all", "replay"
  std::string reason;  // reason code
  std::string note;    // in words
  bool verified = false;
  double gain = 0, gain_low = 0, gain_high = 0;  // baseline's time over its own
  int blocks = 0;
  double milliseconds = 0;
  double max_error = 0, eager_error = 0;
  double compile_seconds = 0;
  int64_t peak_bytes = 0;
  std::vector<std::string> regions;  // hex hashes of what its plan compiled, by step
  bool repaired = false;  // its plan leaves out what was wrong in it, or is wrong as made of plans of other sizes
  bool operator==(const LedgerCandidate&) const = default;
};

// Weights that the choice was judged right with: a race tells about all of a graph's weights, a judge about those that it saw.
struct LedgerWeights {
  std::string stamp;
  double max_error = 0, eager_error = 0;  // of the choice
  bool all = false;                       // every candidate was judged with them, and not the choice alone
  bool operator==(const LedgerWeights&) const = default;
};

inline constexpr size_t kMostLedgerWeights = 8;  // of one record: those that came last

struct LedgerRecord {
  std::string choice;  // the name of a candidate, or "eager"
  std::vector<LedgerWeights> weights;  // in the order in which they came
  std::string disturbed;  // why the race told nothing; not empty only in the memory of the process that ran it: then no figure is there
  std::map<std::string, std::string> fingerprints;  // plugin build, driver, torch, threads, ...: equal or the record is stale
  std::vector<LedgerCandidate> candidates;
  std::map<std::string, std::string> environment;   // of the race: load, clocks; for people
  int64_t pays_back_after_calls = 0;
  double eager_share = 0;
  std::vector<double> step_us;  // what the steps of the choice took, in order; empty: they were not timed
  bool operator==(const LedgerRecord&) const = default;
};

// What is known of the choice with these weights; null: nothing.
const LedgerWeights* weights_of(const LedgerRecord& record, const std::string& stamp);
// As the last of them, and once.
void add_weights(LedgerRecord& record, LedgerWeights weights);

std::string ledger_text(const LedgerRecord& record);
// `corrupt` for anything that ledger_text would not write; figures are clipped to what they can mean.
Result<LedgerRecord> parse_ledger(std::string_view text);

// The record of the key, if there is one and its fingerprints equal these; `stale` says which differs, if one does.
std::optional<LedgerRecord> read_ledger(Cache& cache, const CacheKey& key,
                                        const std::map<std::string, std::string>& fingerprints, std::string* stale);
// `disturbed` records are for this process alone.
bool publish_ledger(Cache& cache, const CacheKey& key, const LedgerRecord& record);

}  // namespace keirin
