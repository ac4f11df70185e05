// SPDX-License-Identifier: Apache-2.0
//
// The sizes that a server decides before it says that it is ready: {"bert": [[1, 128], [8, 128]], "mlp": [[]]}, by
// model, each a list of the free sizes in the order in which `keirin inspect` shows them; an empty one is a model of
// fixed sizes, or the sizes of the export.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace keirin::tools {

using WarmShapes = std::map<std::string, std::vector<std::vector<int64_t>>>;

// `invalid_input`, saying where, for anything else.
Result<WarmShapes> parse_warm_shapes(std::string_view text);
Result<WarmShapes> read_warm_shapes(const std::string& path);

}  // namespace keirin::tools
