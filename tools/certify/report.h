// SPDX-License-Identifier: Apache-2.0
//
// The outcome in three forms: text for people, JSON, and a page.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/host/find/hardware.h"
#include "tools/certify/group.h"

namespace keirin::tools::certify {

struct Certificate {
  Subject subject;
  Words words;
  std::vector<Group> groups;
  HardwareItem device{};                 // that it was tried on; without a uid: none was met
  std::vector<std::string> list_faults;  // of the file of known failures
  std::string verdict, day;              // "passed", "failed", ...; YYYY-MM-DD
  bool passed = false;
  double seconds = 0;
};

// A line for the group, and below it what failed with the command that repeats it.
void print(std::FILE* out, const Group& group, const Words& words);
// keirin/certify/3 (docs/certify.md).
nlohmann::json to_json(const Certificate& certificate);

}  // namespace keirin::tools::certify
