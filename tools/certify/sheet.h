// SPDX-License-Identifier: Apache-2.0
//
// What a plugin computes, how right and how fast, for people who choose one: operators by dtypes, each cell tried and not only claimed.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace keirin::tools::certify {

struct SheetWords {
  std::string library;              // the plugin's
  std::vector<std::string> beside;  // folders of plugins that it is timed beside
  bool speed = true;
  double seconds = 240;             // that timing may take; the tries before it take minutes as well
};

// keirin/sheet/1 (docs/certify.md). Tries every case of the operator table, in programs of their own.
Result<nlohmann::json> sheet_of(const SheetWords& words);
// The same as Markdown.
std::string sheet_text(const nlohmann::json& sheet);

}  // namespace keirin::tools::certify
