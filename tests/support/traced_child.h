// SPDX-License-Identifier: Apache-2.0
//
// A forked child that acts under this process's eyes: stopped before and after each of its system calls, killed at any of them, or
// given an error in place of what the kernel would have answered. The product needs no hook for that. x86-64 only where answers are
// replaced.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <thread>

namespace keirin::test {

class TracedChild {
 public:
  // The child's exit status is what `act` returns.
  explicit TracedChild(const std::function<int()>& act) {
    // Both on one processor: at each stop one waits for the other, and waking a second processor costs more than the step.
    ::sched_getaffinity(0, sizeof(before_), &before_);
    cpu_set_t here;
    CPU_ZERO(&here);
    CPU_SET(::sched_getcpu(), &here);
    ::sched_setaffinity(0, sizeof(here), &here);
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(77);
    ::raise(SIGSTOP);
    ::_exit(act());
  }
  ~TracedChild() {
    ::sched_setaffinity(0, sizeof(before_), &before_);
    if (over()) return;
    ::kill(pid_, SIGKILL);
    wait();
  }
  TracedChild(const TracedChild&) = delete;

  // Lets it go on to its next stop: the entry or the exit of a system call.
  void step() {
    if (!stopped_) stopped_ = wait() && ::ptrace(PTRACE_SETOPTIONS, pid_, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) == 0;
    if (!stopped_ || over()) return;
    ASSERT_EQ(::ptrace(PTRACE_SYSCALL, pid_, 0, 0), 0);
    wait();
    at_entry_ = !at_entry_;
  }
  // To its end, without further stops.
  void let_go() {
    ASSERT_EQ(::ptrace(PTRACE_DETACH, pid_, 0, 0), 0);
    wait();
  }
  // For a while, without further stops.
  void run_for(std::chrono::microseconds time) {
    step();
    if (over()) return;
    ASSERT_EQ(::ptrace(PTRACE_DETACH, pid_, 0, 0), 0);
    std::this_thread::sleep_for(time);
  }
  void kill() {
    if (over()) return;
    ASSERT_EQ(::kill(pid_, SIGKILL), 0);
    while (!over()) ASSERT_TRUE(wait());
  }

  bool over() const { return WIFEXITED(status_) || WIFSIGNALED(status_); }
  bool came_to_its_end() const { return WIFEXITED(status_) && WEXITSTATUS(status_) == 0; }
  bool was_killed() const { return WIFSIGNALED(status_) && WTERMSIG(status_) == SIGKILL; }
  int status() const { return status_; }

#if defined(__x86_64__)
  static constexpr bool kAnswersCanBeReplaced = true;
  struct Call {
    long number = -1;
    unsigned long arguments[3] = {};
  };
  // The next system call, at its entry; number -1 once it is over.
  Call next_call() {
    do step();
    while (!over() && !at_entry_);
    user_regs_struct r{};
    if (over() || ::ptrace(PTRACE_GETREGS, pid_, 0, &r) != 0) return {};
    return {static_cast<long>(r.orig_rax), {r.rdi, r.rsi, r.rdx}};
  }
  // At an entry: the call is not made and answers `error`.
  void fail_call(int error) {
    user_regs_struct r{};
    ASSERT_EQ(::ptrace(PTRACE_GETREGS, pid_, 0, &r), 0);
    r.orig_rax = static_cast<unsigned long long>(-1);
    ASSERT_EQ(::ptrace(PTRACE_SETREGS, pid_, 0, &r), 0);
    step();
    ASSERT_EQ(::ptrace(PTRACE_GETREGS, pid_, 0, &r), 0);
    r.rax = static_cast<unsigned long long>(-static_cast<long long>(error));
    ASSERT_EQ(::ptrace(PTRACE_SETREGS, pid_, 0, &r), 0);
  }
  // At the entry of a read or write: it is made for fewer bytes.
  void shorten_call(unsigned long bytes) {
    user_regs_struct r{};
    ASSERT_EQ(::ptrace(PTRACE_GETREGS, pid_, 0, &r), 0);
    r.rdx = bytes;
    ASSERT_EQ(::ptrace(PTRACE_SETREGS, pid_, 0, &r), 0);
  }
#else
  static constexpr bool kAnswersCanBeReplaced = false;
#endif

 private:
  bool wait() { return ::waitpid(pid_, &status_, 0) == pid_; }
  cpu_set_t before_;
  pid_t pid_ = -1;
  int status_ = 0x7f;  // neither exited nor signalled
  bool stopped_ = false, at_entry_ = false;
};

}  // namespace keirin::test
