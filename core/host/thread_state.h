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

class ThreadState {
 public:
  ThreadState();
  ~ThreadState();
  ThreadState(const ThreadState&) = delete;
  // "floating-point mode, locale": what had changed and was put back; empty if nothing had.
  std::string restore() const;

 private:
  FloatMode float_mode_;
  locale_t locale_;
  std::string global_locale_;
  sigset_t signals_;
  int folder_;  // a descriptor; -1 where the current folder cannot be opened
};

}  // namespace keirin
