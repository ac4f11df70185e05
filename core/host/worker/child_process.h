// SPDX-License-Identifier: Apache-2.0
//
// A child process of ours (keirin-worker): spawned and never forked, in a group of its own, killed with its group when the object
// goes. How it ended is told in words; whether it succeeded is not asked here: a host may reap children by itself, so success is
// judged by what the child answered.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

#include "core/base/files.h"
#include "core/base/status.h"

namespace keirin {

struct ChildEnd {
  bool timed_out = false;
  bool status_known = false;  // false: the host reaps its children itself
  int status = 0;             // as waitpid gives it
  std::string last_words;     // the last line of its standard error
};

// "crashed in claim (signal 11, Segmentation fault); its last words: ...", to follow "the plugin".
std::string describe(const ChildEnd& end, const std::string& stage, std::chrono::milliseconds deadline);

class ChildProcess {
 public:
  using Clock = std::chrono::steady_clock;

  // `request` becomes standard input (-1: empty), `channel` descriptor 3; both lie above it (above_standard) and stay the caller's to
  // close. Standard error goes into a memory file, so that nobody has to read it while the child runs. `unsupported` if it cannot be
  // started.
  static Result<ChildProcess> start(const std::string& program, const char* role, int request, int channel);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  // Waits until it ends, kills it at `deadline`. Once.
  ChildEnd finish(Clock::time_point deadline);
  ChildEnd kill() { return finish(Clock::time_point::min()); }
  // How long its main thread could have run and was not given a processor.
  std::chrono::nanoseconds waited_for_processor() const;
  // Lets go without killing: in a forked copy of the host, where the child belongs to the other process.
  void disown();

 private:
  ChildProcess(pid_t pid, Descriptor errors) : pid_(pid), errors_(std::move(errors)) {}
  pid_t pid_ = -1;
  Descriptor errors_;
};

}  // namespace keirin
