// SPDX-License-Identifier: Apache-2.0
//
// The quarantine on disk: one entry under bad/ per pair of plugin build and region, fsynced, because losing one costs a crash. The
// host remembers and asks (core/host/guard/quarantine.h); this only keeps.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/cache/cache.h"
#include "core/host/guard/quarantine.h"

namespace keirin {

// Of an entry's body; nothing for what publish_bad_record would not write, or what held until the machine's last boot only.
std::optional<BadRecord> parse_bad_record(const std::string& text);
std::vector<BadRecord> read_bad_records(Cache& cache);
bool publish_bad_record(Cache& cache, const BadRecord& record);
// Lets everything, or everything of the plugin of that name, be tried again; returns how many records went. Kept ranges of sizes go
// with them, since they remember what was closed: they are made again of the decisions that are there.
size_t forgive(Cache& cache, const std::string& plugin);

// The quarantine of a process: what the cache knows, and what is added goes there. The cache must outlive it; null: for this
// process only.
std::shared_ptr<Quarantine> open_quarantine(Cache* cache);

}  // namespace keirin
