// SPDX-License-Identifier: Apache-2.0
#include "core/host/guard/quarantine.h"

#include <algorithm>
#include <set>

#include "abi/planted.h"

namespace keirin {

void Quarantine::add(const BadRecord& record, bool durable) {
  {
    const std::lock_guard guard(mutex_);
    const auto same_pair = [&](const BadRecord& known) {
      const bool same_kind = (known.function == kJudgedWrong) == (record.function == kJudgedWrong);
      return same_kind && known.guid == record.guid && known.build == record.build && known.region == record.region;
    };
    if (std::any_of(records_.begin(), records_.end(), same_pair)) return;
    records_.push_back(record);
  }
  if (durable && keep_ && !KRN_PLANTED(quarantine_forgotten)) keep_(record);
}

void Quarantine::rest(const BadRecord& record) {
  constexpr Clock::duration kFirst = std::chrono::seconds(1), kLongest = std::chrono::hours(1);
  const Clock::time_point now = now_();
  const std::lock_guard guard(mutex_);
  Rest& rest = rests_[{record.guid, record.build, record.region}];
  ++times_rested_;
  if (now < rest.end) return;  // what fails beside it, or because it rests
  const bool again = rest.length.count() > 0 && now < rest.end + rest.length;
  rest.length = again ? std::min<Clock::duration>(2 * rest.length, kLongest) : kFirst;
  rest.end = now + rest.length;
  rest.what = record.plugin + ": " + record.what;
}

std::vector<BadRecord> Quarantine::of_plugin(const std::string& guid, const std::string& build) const {
  const std::lock_guard guard(mutex_);
  std::vector<BadRecord> found;
  // What died before the plugin could state its build is held against every build of that guid.
  for (const BadRecord& r : records_)
    if (r.guid == guid && (r.build == build || r.build.empty())) found.push_back(r);
  return found;
}

std::set<std::string> Quarantine::judged_wrong(const std::string& guid, const std::string& build) const {
  std::set<std::string> regions;
  for (const BadRecord& r : of_plugin(guid, build))
    if (r.function == kJudgedWrong) regions.insert(r.region);
  return regions;
}

std::optional<std::string> Quarantine::why_not(const std::string& guid, const std::string& build, const Hash& region) const {
  const std::string name = hex(region);
  for (const BadRecord& r : of_plugin(guid, build))
    if (r.region == name && r.function != kJudgedWrong)
      return "quarantined: " + r.plugin + ": " + r.what + " on this region (" + name.substr(0, 12) + ") before";
  return why_not(guid, build);
}

std::optional<std::string> Quarantine::why_rests(const std::string& guid, const std::string& build, const Hash& region) const {
  const std::string name = hex(region);
  const std::lock_guard guard(mutex_);
  const auto found = rests_.find({guid, build, name});
  if (found == rests_.end() || now_() >= found->second.end) return std::nullopt;
  return "at rest: " + found->second.what + " on this region (" + name.substr(0, 12) + ") a moment ago";
}

std::optional<std::string> Quarantine::why_not(const std::string& guid, const std::string& build) const {
  std::set<std::string> regions;
  const std::vector<BadRecord> records = of_plugin(guid, build);
  const BadRecord* last = nullptr;
  for (const BadRecord& r : records) {
    if (r.function == kJudgedWrong) continue;
    if (r.region.empty()) return "quarantined: " + r.plugin + ": " + r.what + " before";
    regions.insert(r.region);
    last = &r;
  }
  if (regions.size() < kBadRegionsOfABadPlugin) return {};
  return "quarantined: " + last->plugin + " failed on " + std::to_string(regions.size()) + " regions, the last time it " + last->what;
}

}  // namespace keirin
