// SPDX-License-Identifier: Apache-2.0
//
// The threads of the test's process.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace keirin::test {

// How many threads have each name; those of a team of OpenMP's are called as the thread that they were started by.
inline std::map<std::string, int> threads_by_name() {
  std::map<std::string, int> out;
  for (const std::filesystem::directory_entry& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(thread.path() / "comm");
    std::string name;
    if (std::getline(file, name)) ++out[name];
  }
  return out;
}

// Those that are not of ours that stay (core/base/thread_name.h), whose names begin with "keirin-".
inline int num_unnamed_threads() {
  int out = 0;
  for (const auto& [name, count] : threads_by_name()) out += name.starts_with("keirin-") ? 0 : count;
  return out;
}

}  // namespace keirin::test
