// SPDX-License-Identifier: Apache-2.0
//
// Failures that are known: a file with a line for each, what of it may fail, until when, and why. An entry excuses no longer than to its
// day, and one that excuses nothing is a failure itself, so that the list cannot outlive what it is for.
#pragma once

#include <string>
#include <vector>

#include "tools/certify/group.h"

namespace keirin::tools::certify {

struct Known {
  std::string pattern, until, reason;  // until: YYYY-MM-DD, the last day
  int line = 0;
};

// Empty lines and those that begin with # are nobody's. `invalid_input` with the line where one is not PATTERN DATE REASON.
Result<std::vector<Known>> read_known(const std::string& path);

// Moves what is excused on `today` from the groups' failures to what is known, and returns what is wrong with the list: entries that have
// expired, and those that nothing needed, of whose group all cases were tried (`whole`, or a lettered group).
std::vector<std::string> apply_known(std::vector<Group>& groups, const std::vector<Known>& known, const std::string& today, bool whole);

}  // namespace keirin::tools::certify
