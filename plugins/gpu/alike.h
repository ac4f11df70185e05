// SPDX-License-Identifier: Apache-2.0
//
// What was found out about problems of some sizes, for others of their family: first what the nearest ones showed.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keirin::gpu {

// Thread-safe. `family`: what problems that are served alike have in common; `volume`: what they grow with, above 0.
template <class Found>
class Alike {
 public:
  // In the place of what was found out at this volume before.
  void remember(const std::string& family, double volume, Found found) {
    const std::lock_guard lock(mutex_);
    families_[family].insert_or_assign(volume, std::move(found));
  }
  // Each once, that of the volume first that is the fewest times as large or as small.
  std::vector<Found> by_distance(const std::string& family, double volume) const {
    std::vector<std::pair<double, Found>> known;
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = families_.find(family); found != families_.end()) known.assign(found->second.begin(), found->second.end());
    }
    std::ranges::stable_sort(known, {}, [&](const auto& each) { return std::fabs(std::log(each.first / volume)); });
    std::vector<Found> out;
    for (auto& [at, found] : known)
      if (std::ranges::find(out, found) == out.end()) out.push_back(std::move(found));
    return out;
  }
  std::optional<Found> nearest(const std::string& family, double volume) const {
    std::vector<Found> all = by_distance(family, volume);
    return all.empty() ? std::nullopt : std::optional<Found>(std::move(all.front()));
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::map<double, Found>> families_;
};

}  // namespace keirin::gpu
