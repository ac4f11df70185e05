// SPDX-License-Identifier: Apache-2.0
//
// The process in which one check is tried.
#pragma once

#include <chrono>
#include <string>

#include "core/host/worker/child_process.h"

namespace keirin::certify {

struct ChildAnswer {
  std::string told;  // lines, whatever it came to
  ChildEnd end;
};

// This program once more, with `request` (JSON: main.cc's try_one reads it), killed after `deadline`.
Result<ChildAnswer> ask_child(const std::string& request, std::chrono::milliseconds deadline);

}  // namespace keirin::certify
