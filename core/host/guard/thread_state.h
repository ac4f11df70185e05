// SPDX-License-Identifier: Apache-2.0
//
// What a plugin call must leave as it found it: floating-point mode, locale, signal mask, current folder. Looked at before the
// call, put back after it, and what had changed is named. FloatMode alone is cheap enough for every run.
#pragma once

#include <locale.h>
#include <signal.h>

#include <cstdint>
#include <string>

namespace keirin {

// Rounding, flush-to-zero and exception masks of this thread, without the sticky flags.
class FloatMode {
 public:
  FloatMode() : before_(read()) {}
  // Whether it had to be put back.
  bool restore() const {
    if (read() == before_) return false;
    write(before_);
    return true;
  }

 private:
  static uint64_t read();
  static void write(uint64_t mode);
  uint64_t before_;
};

// What belongs to the thread alone.
class ThreadState {
 public:
  ThreadState();
  // "floating-point mode, signal mask": what had changed and was put back; empty if nothing had.
  std::string restore() const;

 private:
  FloatMode float_mode_;
  locale_t locale_;
  sigset_t signals_;
};

// What all threads share: the global locale and the current folder.
class ProcessState {
 public:
  ProcessState();
  ~ProcessState();
  ProcessState(const ProcessState&) = delete;
  std::string restore() const;

 private:
  std::string locale_;
  int folder_;  // a descriptor; -1 where the current folder cannot be opened
};

// Around one call into a plugin. What is shared was as the first of the calls in flight found it, and is put back when the last one
// ends: a call that began after another plugin's mischief must not take that for how things were, nor be blamed for it.
class CallState {
 public:
  CallState();
  ~CallState();
  CallState(const CallState&) = delete;
  // What this call changed, put back. Shared things are named only if no other call was in flight.
  std::string restore();

 private:
  std::string leave();
  ThreadState thread_;
  bool left_ = false;
};

}  // namespace keirin
