// SPDX-License-Identifier: Apache-2.0
#include "core/cache/ledger.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "abi/planted.h"

namespace keirin {
namespace {

using nlohmann::json;
constexpr int kSchema = 4;

json candidate_json(const LedgerCandidate& c) {
  return {{"name", c.name},
          {"reason", c.reason},
          {"note", c.note},
          {"verified", c.verified},
          {"gain", {c.gain_low, c.gain, c.gain_high}},
          {"blocks", c.blocks},
          {"milliseconds", c.milliseconds},
          {"max_error", c.max_error},
          {"eager_error", c.eager_error},
          {"compile_seconds", c.compile_seconds},
          {"peak_bytes", c.peak_bytes},
          {"regions", c.regions},
          {"repaired", c.repaired}};
}

// A figure that a ledger may hold; NaN, infinity (JSON has neither, null stands for them) and what is absurd become the bound.
double figure(const json& j, double low, double high) {
  if (!j.is_number()) return low;
  const double x = j.get<double>();
  return std::isfinite(x) ? std::clamp(x, low, high) : low;
}

int64_t count(const json& j) { return static_cast<int64_t>(figure(j, 0, 9e15)); }

LedgerCandidate candidate_of(const json& j) {
  LedgerCandidate c;
  c.name = j.at("name");
  c.reason = j.at("reason");
  c.note = j.at("note");
  c.verified = j.at("verified");
  const json& gain = j.at("gain");
  c.gain_low = figure(gain.at(0), 0, 1e6);
  c.gain = figure(gain.at(1), 0, 1e6);
  c.gain_high = figure(gain.at(2), 0, 1e6);
  c.blocks = static_cast<int>(figure(j.at("blocks"), 0, 1e6));
  c.milliseconds = figure(j.at("milliseconds"), 0, 1e9);
  c.max_error = figure(j.at("max_error"), 0, 1e300);
  c.eager_error = figure(j.at("eager_error"), 0, 1e300);
  c.compile_seconds = figure(j.at("compile_seconds"), 0, 1e6);
  c.peak_bytes = count(j.at("peak_bytes"));
  c.regions = j.at("regions").get<std::vector<std::string>>();
  c.repaired = j.at("repaired");
  return c;
}

}  // namespace

const LedgerWeights* weights_of(const LedgerRecord& record, const std::string& stamp) {
  const auto at = std::ranges::find(record.weights, stamp, &LedgerWeights::stamp);
  return at == record.weights.end() ? nullptr : &*at;
}

void add_weights(LedgerRecord& record, LedgerWeights weights) {
  std::erase_if(record.weights, [&](const LedgerWeights& w) { return w.stamp == weights.stamp; });
  if (record.weights.size() >= kMostLedgerWeights) record.weights.erase(record.weights.begin());
  record.weights.push_back(std::move(weights));
}

std::string ledger_text(const LedgerRecord& record) {
  json candidates = json::array(), weights = json::array();
  for (const LedgerWeights& w : record.weights) weights.push_back({w.stamp, w.max_error, w.eager_error, w.all});
  for (const LedgerCandidate& c : record.candidates) candidates.push_back(candidate_json(c));
  const json j = {{"schema", kSchema},
                  {"choice", record.choice},
                  {"weights", weights},
                  {"disturbed", record.disturbed},
                  {"fingerprints", record.fingerprints},
                  {"candidates", candidates},
                  {"environment", record.environment},
                  {"pays_back_after_calls", record.pays_back_after_calls},
                  {"eager_share", record.eager_share},
                  {"step_us", record.step_us}};
  return j.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

Result<LedgerRecord> parse_ledger(std::string_view text) {
  const json j = json::parse(text, nullptr, false);
  const auto corrupt = [](std::string what) {
    return Status(Code::k_corrupt, Message{std::move(what), "ledger", "the race is run again", {}});
  };
  if (!j.is_object()) return corrupt("the record is not JSON");
  try {
    if (j.at("schema") != kSchema) return corrupt("the record has another schema");
    LedgerRecord record;
    record.choice = j.at("choice");
    record.disturbed = j.at("disturbed");
    for (const json& w : j.at("weights")) {
      if (record.weights.size() == kMostLedgerWeights) return corrupt("the record has too many weights");
      record.weights.push_back({w.at(0), figure(w.at(1), 0, 1e300), figure(w.at(2), 0, 1e300), w.at(3)});
    }
    record.fingerprints = j.at("fingerprints").get<std::map<std::string, std::string>>();
    record.environment = j.at("environment").get<std::map<std::string, std::string>>();
    record.pays_back_after_calls = count(j.at("pays_back_after_calls"));
    record.eager_share = std::clamp(j.at("eager_share").get<double>(), 0.0, 1.0);
    for (const json& us : j.at("step_us")) record.step_us.push_back(figure(us, 0, 1e12));
    for (const json& c : j.at("candidates")) record.candidates.push_back(candidate_of(c));
    const bool known = record.choice == "eager" ||
                       std::any_of(record.candidates.begin(), record.candidates.end(),
                                   [&](const LedgerCandidate& c) { return c.name == record.choice && c.verified; });
    if (!known) return corrupt("the choice is not a verified candidate");
    return record;
  } catch (const json::exception& e) {
    return corrupt(std::string("the record has another shape: ") + e.what());
  }
}

std::optional<LedgerRecord> read_ledger(Cache& cache, const CacheKey& key,
                                        const std::map<std::string, std::string>& fingerprints, std::string* stale) {
  const std::optional<std::string> text = cache.read(EntryKind::kLedger, key);
  if (!text) return {};
  Result<LedgerRecord> record = parse_ledger(*text);
  if (!record.ok()) {
    cache.remove(EntryKind::kLedger, key);
    return {};
  }
  if (record->fingerprints == fingerprints || KRN_PLANTED(stale_ledger)) return std::move(*record);
  if (!stale) return {};
  for (const auto& [name, value] : fingerprints) {
    const auto at = record->fingerprints.find(name);
    if (at != record->fingerprints.end() && at->second == value) continue;
    *stale = name + ": " + (at == record->fingerprints.end() ? "nothing" : at->second) + " -> " + value;
    return {};
  }
  *stale = "a fingerprint is gone";
  return {};
}

bool publish_ledger(Cache& cache, const CacheKey& key, const LedgerRecord& record) {
  if (!record.disturbed.empty()) return cache.hold(EntryKind::kLedger, key, ledger_text(record)), true;
  return cache.publish(EntryKind::kLedger, key, ledger_text(record));
}

}  // namespace keirin
