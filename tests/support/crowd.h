// SPDX-License-Identifier: Apache-2.0
//
// Others that want the processor, for real: for tests of what a process notices of it.
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>

namespace keirin::test {

// This process on one processor, for as long as the object lives.
class OnOneProcessor {
 public:
  OnOneProcessor() {
    ::sched_getaffinity(0, sizeof(all_), &all_);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &all_)) {
        CPU_SET(cpu, &one);
        break;
      }
    ::sched_setaffinity(0, sizeof(one), &one);
  }
  ~OnOneProcessor() { ::sched_setaffinity(0, sizeof(all_), &all_); }

 private:
  cpu_set_t all_;
};

// A process that does nothing but run.
class BusyProcess {
 public:
  BusyProcess() : id_(::fork()) {
    for (volatile uint64_t turns = 0; id_ == 0;) turns = turns + 1;
  }
  ~BusyProcess() {
    ::kill(id_, SIGKILL);
    ::waitpid(id_, nullptr, 0);
  }

 private:
  pid_t id_;
};

}  // namespace keirin::test
