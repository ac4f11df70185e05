// SPDX-License-Identifier: Apache-2.0
//
// A bundle is a .pt2 file that also holds the slice of a cache which some kinds of calls need: decisions, what eager showed, code. It is
// read wherever a .pt2 is, by path and from memory, and the first call of such a kind is answered by the plan. The entries are those of
// the cache, byte for byte (core/cache): they are found under the same keys, so that what was made for another plugin build, machine,
// LibTorch or set of options is not found, and the model is then what the .pt2 was. Internal to core/api and the command.
//
// Entries hold native code. They are used where this user's own cache wrote them, or the option `trust` is native.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/api/session.h"
#include "core/capture/pt2/read_pt2.h"

namespace keirin {

// One kind of call that a bundle was made for.
struct BundledKind {
  std::string device;          // "cpu"
  std::vector<int64_t> sizes;  // Session::example_inputs'; empty: those of the export
  std::string chosen;          // what answers it
  double speedup = 1;          // where it was made
  std::string known;           // the hex key of its entry of kind known
};

// "8,128"; of none: words that say so.
std::string sizes_text(const std::vector<int64_t>& sizes);

struct BundleList {
  std::string made_by;  // "0.3.0, torch 2.9.1"
  std::vector<BundledKind> kinds;
  size_t num_entries = 0;
};

// "1.52x"; of eager nothing.
std::string speedup_text(const BundledKind& kind);

std::string bundle_text(const BundleList& list);
// Nothing where the file is not a bundle. `corrupt` or `version` for a list that bundle_text would not write.
Result<std::optional<BundleList>> bundle_of(const pt2::Pt2File& file);

// What came of taking a bundle over.
struct OpenedBundle {
  BundleList list;
  size_t taken = 0;     // kinds of the session's device
  std::string why_not;  // one line: why others were not taken; empty: all were, or nobody asked for it
};

// Of a session that is complete but for this: hands the entries to the runtime's cache and publishes what was decided for the kinds of its
// device. Entries that cannot be used are not an error: `why_not` says so, and the session is that of the .pt2.
Result<std::optional<OpenedBundle>> open_bundle(Session::Impl& session);

struct BuiltBundle {
  BundleList list;
  uint64_t entry_bytes = 0;
};

// Decides for each of `kinds` on each of `devices` (or takes over what was decided before), and writes the file `to`: the .pt2 file `path`
// and what a process needs to answer those calls as it does. The runtime has to have a cache. Errors say which kind could not be decided.
Result<BuiltBundle> build_bundle(Runtime& runtime, const std::string& path, const std::vector<std::vector<int64_t>>& kinds,
                                 const std::vector<std::string>& devices, const Options& options, const std::string& to);

}  // namespace keirin
