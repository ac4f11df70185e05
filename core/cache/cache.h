// SPDX-License-Identifier: Apache-2.0
//
// The cache on disk: entries by key, one file each, written whole or not at all, read only if this user wrote them and every
// check holds. What it is not: an authority. Whatever goes wrong here costs time, never an answer and never an error: a bad
// entry is deleted by whoever finds it, a full disk makes the process slower and says so once.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/files.h"
#include "core/base/sha256.h"
#include "core/base/status.h"

namespace keirin {

enum class EntryKind { kArtifact = 0, kLedger = 2, kBad = 3, kClaims = 4, kKnown = 5, kRanges = 6 };  // entries on disk hold the number
inline constexpr size_t kNumKinds = 7;
std::string_view entry_kind_name(EntryKind kind);  // the folder's name: artifact ledger bad claims known ranges

// What an entry depends on, as lines `name=value` in the order of the names. The SHA-256 of the text is the file's name; the
// entry repeats the text, so that two keys can be compared line by line.
class CacheKey {
 public:
  CacheKey& add(std::string_view name, std::string_view value);  // a name is added once; line breaks in values are escaped
  CacheKey& add(std::string_view name, int64_t value);
  std::string text() const;
  std::string hex() const;

 private:
  std::vector<std::pair<std::string, std::string>> fields_;  // sorted by name
};

struct EntryInfo {
  EntryKind kind;
  std::string key;   // hex
  uint64_t bytes = 0;
  int64_t used_s = 0;  // last use, seconds since the epoch
  std::string problem;  // check(): why it was dropped; else empty
};

struct CacheOptions {
  std::string dir;  // absolute; empty: $KEIRIN_CACHE, else $XDG_CACHE_HOME/keirin/1, else ~/.cache/keirin/1
  uint64_t max_bytes = 4ull << 30;
  std::function<void(std::string_view)> warn;  // told once per process why the cache is off or cannot be written
};

class Cache {
 public:
  // Never fails: where the folder cannot be used, nothing is found and nothing is kept.
  explicit Cache(CacheOptions options);
  bool usable() const { return usable_; }
  const std::string& dir() const { return dir_; }

  // The bytes published under the key. A torn, swapped, flipped or foreign entry is deleted and not found.
  std::optional<std::string> read(EntryKind kind, const CacheKey& key);
  // How often `read` was asked and found something, in this process, by the kind's name. Any thread.
  struct Reads {
    uint64_t hits = 0, misses = 0;
  };
  std::map<std::string, Reads> reads() const;
  bool publish(EntryKind kind, const CacheKey& key, std::string_view body);
  void remove(EntryKind kind, const CacheKey& key);
  void remove(const EntryInfo& entry);

  // A slice of a cache may lie in another file (core/api/bundle.h): what an entry is there, once it was checked. `own`: this user's cache
  // wrote it; else whoever adopts it has to know who did.
  struct ForeignEntry {
    EntryKind kind;
    std::string key;  // hex
    std::string key_text, body;
    bool own = false;
  };
  // `corrupt` for what is not a sound entry of this version.
  Result<ForeignEntry> check_foreign(std::string_view file) const;
  // `read` finds it from now on, in memory and before what the folder holds, until one is published under its key. Any thread.
  void adopt(ForeignEntry entry);
  // The same of what only this process may know, as it holds for a while: kMostHeld entries, those that came last. Any thread.
  void hold(EntryKind kind, const CacheKey& key, std::string body);
  static constexpr size_t kMostHeld = 512;
  // Whether `read` may find something, also where the folder cannot be used.
  bool readable() const;
  // The entry's file, byte for byte; nothing where it is not sound.
  std::optional<std::string> file_of(const EntryInfo& entry);
  // Between the two: which entries of the folder `read` found, in that order. One at a time.
  void begin_noting();
  std::vector<EntryInfo> end_noting();

  // For one compile per key across processes: nothing if another process keeps it for all of `wait`, or the cache is off.
  std::optional<FileLock> lock(const std::string& name, std::chrono::milliseconds wait);

  std::vector<EntryInfo> list();
  // What the entry holds; nothing where it is not sound.
  std::optional<std::string> body(const EntryInfo& entry);
  // What all sound entries of a kind hold; for kinds with few entries.
  std::vector<std::string> bodies(EntryKind kind);
  // Reads everything, deletes what is not a sound entry and the leftovers of writers that died; returns what was deleted, with the
  // reason. What cannot be read at the moment stays.
  std::vector<EntryInfo> check();
  // Deletes leftovers and the least recently used entries until the rest fits; safe while others read. Quarantine entries stay.
  uint64_t sweep();
  // The key text of the entry whose hex key starts with `prefix`.
  std::optional<std::string> explain(std::string_view prefix);

 private:
  Status prepare();
  // The parts of an entry's file; `corrupt` for what is none, or, with `own`, none of this user's cache.
  Result<ForeignEntry> parse_entry(std::string_view bytes, const std::string& where, bool own) const;
  std::optional<std::string> find_adopted(EntryKind kind, const std::string& hex);
  void drop_adopted(EntryKind kind, const std::string& hex);
  void note(EntryKind kind, const std::string& hex);
  std::string path_of(EntryKind kind, const std::string& hex) const;
  // The body; `corrupt` for what is not an entry of ours under that key, another code if it cannot be read at all.
  Result<std::string> open_entry(EntryKind kind, const std::string& path, const std::string& hex, std::string* key_text);
  std::vector<EntryInfo> drop_leftovers();  // of writers that died
  void warn_once(const Status& status);

  CacheOptions options_;
  std::string dir_;
  std::string mac_key_;
  bool usable_ = false;
  std::atomic<bool> warned_{false};
  struct Count {
    std::atomic<uint64_t> hits{0}, misses{0};
  };
  std::array<Count, kNumKinds> counts_;  // by the kind's number
  using Name = std::pair<EntryKind, std::string>;
  mutable std::mutex mutex_;             // guards what follows
  std::map<Name, std::string> adopted_;  // bodies
  std::deque<Name> held_;                // of them, those that hold for a while, in the order in which they came
  bool noting_ = false;
  std::vector<EntryInfo> noted_;
};

// $KEIRIN_CACHE, $XDG_CACHE_HOME/keirin/1 or ~/.cache/keirin/1; empty if none is absolute.
std::string default_cache_dir();

}  // namespace keirin
