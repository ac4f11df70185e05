// SPDX-License-Identifier: Apache-2.0
//
// One side of a pair, as the matrix sees it: which program runs what, and the worker process that does. A crash or hang
// of the worker is an answer, never this process's end.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "core/host/worker/channel.h"
#include "core/host/worker/child_process.h"

namespace keirin::tools::matrix {

// `word` is a keirin command, or the prefix that one is installed or built in. Absolute. `invalid_input` if there is
// none.
Result<std::string> find_command(const std::string& word);

// Where Python finds the package that was built or installed with that command: beside it in a build folder, around it
// in a wheel, below the prefix of a wheel's start script. Empty if there is none.
std::string find_package(const std::string& command);

class Side {
 public:
  // A fresh worker process. `unsupported` if the program cannot be started.
  static Result<Side> start(const std::string& program);
  // `crashed`, `timeout` or `corrupt` (an answer without what worker.h says it holds) with what was seen, after which
  // the process is gone; else what the worker said.
  Result<nlohmann::json> ask(const nlohmann::json& question, std::chrono::milliseconds deadline);

 private:
  Side(ChildProcess child, Descriptor channel) : child_(std::move(child)), channel_(std::move(channel)) {}
  ChildProcess child_;
  Descriptor channel_;
};

}  // namespace keirin::tools::matrix
