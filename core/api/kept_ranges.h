// SPDX-License-Identifier: Apache-2.0
//
// What stays of a model's ranges of sizes for the next process: which sizes they hold and what answers them, in the cache, under all that a
// decision depends on. Who finds them decides at no size again: it makes its plans as whoever found them out does. A range that was closed,
// because a plan of it was wrong, stays closed. Internal to core/api.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/api/session_impl.h"

namespace keirin {

std::string ranges_text(const KeptRanges& ranges);
// `corrupt` for what ranges_text would not write.
Result<KeptRanges> parse_ranges(std::string_view text);

// What an earlier process kept for this very file, device, options, LibTorch and plugins; nothing
// where there is none or nothing may be taken from the cache. Any thread.
enum class RangesOf {
  kTheseWeights,
  kAnyWeights,  // of the program, whatever weights they were found with last
  kBegun,       // of the program: what keep_begun_ranges kept
};
std::optional<KeptRanges> read_kept_ranges(const Session::Impl& session, RangesOf of = RangesOf::kTheseWeights);
// For this process: which sizes are being checked, as the box and the sizes met say. Nothing answers them.
void keep_begun_ranges(const Session::Impl& session, const SizeBox& box, const std::vector<Sizes>& met);
// In the place of what was kept.
void keep_ranges(const Session::Impl& session);
// Where ranges were kept: those that this session closed are closed for the next process too. Any thread.
void keep_closed_ranges(const Session::Impl& session);

}  // namespace keirin
