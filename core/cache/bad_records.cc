// SPDX-License-Identifier: Apache-2.0
#include "core/cache/bad_records.h"

#include <nlohmann/json.hpp>

#include "core/host/worker/worker_words.h"

namespace keirin {
namespace {

using nlohmann::json;

CacheKey key_of(const BadRecord& record) {
  CacheKey key;
  key.add("what", record.function == kJudgedWrong ? "wrong 1" : "bad 1");
  key.add("guid", record.guid).add("build", record.build).add("region", record.region);
  return key;
}

}  // namespace

std::optional<BadRecord> parse_bad_record(const std::string& text) {
  const json j = json::parse(text, nullptr, false);
  try {
    if (!j.is_object() || j.at("schema") != 1) return {};
    BadRecord record{j.at("plugin"), j.at("guid"), j.at("build"), j.at("region"), j.at("function"), j.at("what"), j.at("boot")};
    return record.boot.empty() || record.boot == boot_id() ? std::optional(std::move(record)) : std::nullopt;
  } catch (const json::exception&) {
    return {};
  }
}

std::vector<BadRecord> read_bad_records(Cache& cache) {
  std::vector<BadRecord> records;
  for (const std::string& body : cache.bodies(EntryKind::kBad))
    if (std::optional<BadRecord> record = parse_bad_record(body)) records.push_back(std::move(*record));
  return records;
}

bool publish_bad_record(Cache& cache, const BadRecord& record) {
  const json j = {{"schema", 1},          {"plugin", record.plugin},     {"guid", record.guid}, {"build", record.build},
                  {"region", record.region}, {"function", record.function}, {"what", record.what},   {"boot", record.boot}};
  return cache.publish(EntryKind::kBad, key_of(record), j.dump(-1, ' ', false, json::error_handler_t::replace));
}

size_t forgive(Cache& cache, const std::string& plugin) {
  size_t gone = 0;
  for (const BadRecord& record : read_bad_records(cache)) {
    if (!plugin.empty() && record.plugin != plugin) continue;
    cache.remove(EntryKind::kBad, key_of(record));
    ++gone;
  }
  for (const EntryInfo& entry : cache.list())
    if (entry.kind == EntryKind::kRanges) cache.remove(entry);
  return gone;
}

std::shared_ptr<Quarantine> open_quarantine(Cache* cache) {
  if (!cache || !cache->usable()) return std::make_shared<Quarantine>();
  return std::make_shared<Quarantine>(read_bad_records(*cache),
                                      [cache](const BadRecord& record) { (void)publish_bad_record(*cache, record); });
}

}  // namespace keirin
