// SPDX-License-Identifier: Apache-2.0
//
// What is not tried again: pairs of a plugin's build and a region whose compile or run went wrong, and plugins with three of them. And what
// rests: pairs that the machine let down, by a worker that somebody killed or memory that ran out.
// It is a memory and no judge: others decide what is wrong. Kept for the process here; on disk by whoever gives `keep`.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/sha256.h"

namespace keirin {

struct BadRecord {
  std::string plugin;    // its name, for people
  std::string guid, build;
  std::string region;    // hex of the region's hash; empty: the plugin itself, before any region
  std::string function;  // "krn.compile.compile": where it happened
  std::string what;      // "crashed in compile (signal 11, Segmentation fault)"
  std::string boot;      // empty: for ever; else until the next boot: a machine that stood still makes everything look hung
  bool operator==(const BadRecord&) const = default;
};

inline constexpr size_t kBadRegionsOfABadPlugin = 3;

// BadRecord::function of regions whose code ran to its end and answered wrong, as the judge found. They are taken apart, or run
// eagerly, by whoever builds plans: the plugin may have them, and three of them say nothing of its others.
inline constexpr const char* kJudgedWrong = "keirin.judge";

class Quarantine {
 public:
  using Keep = std::function<void(const BadRecord&)>;
  using Clock = std::chrono::steady_clock;
  using Now = std::function<Clock::time_point()>;
  explicit Quarantine(std::vector<BadRecord> known = {}, Keep keep = {}, Now now = Clock::now)
      : records_(std::move(known)), keep_(std::move(keep)), now_(std::move(now)) {}

  // `durable`: also on disk; else until this process ends.
  void add(const BadRecord& record, bool durable = true);
  // It was the machine's fault rather than the plugin's, which may do it again after a rest: nothing is kept on disk and nothing counts
  // against the plugin. A second at first; twice as long where it goes wrong again within as long as it rested, an hour at most.
  void rest(const BadRecord& record);
  // Somebody who decides was refused what rests.
  void note_refusal() { ++times_rested_; }
  // How many times something was sent to rest, or such a refusal was noted. What was decided while that grew is not what would be decided
  // on a machine that lets nobody down.
  uint64_t times_rested() const { return times_rested_; }
  // What sent the region to rest, as a sentence; nothing where it does not rest now.
  std::optional<std::string> why_rests(const std::string& guid, const std::string& build, const Hash& region) const;
  // Why the plugin may not touch the region, now or later, as a sentence; nothing if it may.
  std::optional<std::string> why_not(const std::string& guid, const std::string& build, const Hash& region) const;
  // Why the plugin may not be used at all.
  std::optional<std::string> why_not(const std::string& guid, const std::string& build) const;
  // Hex hashes of the regions that it was judged wrong for.
  std::set<std::string> judged_wrong(const std::string& guid, const std::string& build) const;
  std::vector<BadRecord> of_plugin(const std::string& guid, const std::string& build) const;

 private:
  mutable std::mutex mutex_;
  std::vector<BadRecord> records_;
  Keep keep_;
  Now now_;
  struct Rest {
    std::string what;
    Clock::duration length{};
    Clock::time_point end;
  };
  std::map<std::array<std::string, 3>, Rest> rests_;  // by guid, build and region
  std::atomic<uint64_t> times_rested_{0};
};

}  // namespace keirin
