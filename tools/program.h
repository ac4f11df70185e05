// SPDX-License-Identifier: Apache-2.0
//
// Another program, run to its end. Where it may hang or has to be spoken with, core/host/worker/child_process.h is the one to take.
// Internal to tools/.
#pragma once

#include <string>
#include <vector>

namespace keirin::tools {

struct ProgramRun {
  std::string program;                      // its file
  std::vector<std::string> words;           // its arguments, the first is its name
  std::vector<std::string> settings{};      // NAME=value: in its environment, in place of what this process has under the name
  std::string out = "/dev/null", errors{};  // files for what it prints; errors empty: into `out` as well
  std::string diary{};  // a file that it adds to while it gets on,
  double patience = 0;  // and after how many seconds without that it is killed; 0: never
};

// How it ended.
struct ProgramEnd {
  int code = -1;      // its exit code; -1: a signal ended it, or it could not be started
  std::string how{};  // "ended with exit code 3", "was ended by signal 11 (Segmentation fault)", "could not be started: ..."
};

// Waits for its end, however long that takes but for `patience`. It reads nothing from standard input. Any thread.
ProgramEnd run_program(const ProgramRun& run);

}  // namespace keirin::tools
