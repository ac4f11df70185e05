// SPDX-License-Identifier: Apache-2.0
//
// Writes a .pt2 file that is another one with more records in extra/: whoever reads .pt2 files reads it as the model that it was. What the
// file held is copied byte for byte, where it lay; not a general zip writer.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/capture/pt2/limits.h"

namespace keirin::pt2 {

// `records`: names below extra/ and what they hold. Records of `from` whose name begins with `replaced` (below extra/) are left out; their
// bytes are not part of the new file's directory. `to` appears whole or not at all, and may be `from`. Errors of `from` are read_pt2's.
Status add_records(const std::string& from, const std::string& to, std::string_view replaced,
                   const std::vector<std::pair<std::string, std::string>>& records, const Limits& limits = {});

}  // namespace keirin::pt2
