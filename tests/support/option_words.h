// SPDX-License-Identifier: Apache-2.0
//
// For each row of the options' table a value that it may have and has not by default, so that a test of all rows tests
// a new one.
#pragma once

#include <algorithm>
#include <charconv>
#include <string>

#include "core/api/options.h"

namespace keirin::test {

// A word that is allowed and not what `options` have. `folder`: one that is there.
inline std::string other_word(const OptionRow& row, const Options& options, const std::string& folder) {
  const std::vector<std::string> now = row.get(options);
  switch (row.values.kind) {
    case OptionValues::kSwitch: return now[0] == "true" ? "false" : "true";
    case OptionValues::kWords:  // the first counts where nothing is said
      return now[0] == row.values.words[1] ? row.values.words[0] : row.values.words[1];
    case OptionValues::kNumber: {
      double number = 0;
      std::from_chars(now[0].data(), now[0].data() + now[0].size(), number);
      const std::string more = std::to_string(number + 1);
      return more.substr(0, more.find(".000000"));
    }
    case OptionValues::kDevice: return "cuda";
    case OptionValues::kPass: return "merge_siblings";
    case OptionValues::kPlugin: return "cpu";
    case OptionValues::kPath: return folder;
    case OptionValues::kText:
      return row.name == "load_libraries" ? "libm.so.6" : row.name == "only_candidate" ? "replay" : folder;
  }
  return {};
}

}  // namespace keirin::test
