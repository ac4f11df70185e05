// SPDX-License-Identifier: Apache-2.0
#include "core/host/thread_state.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace keirin {
namespace {

// Plain set of the real-time signals too; glibc's sigset_t has no padding that differs.
bool same(const sigset_t& a, const sigset_t& b) {
  for (int s = 1; s < NSIG; ++s)
    if (::sigismember(&a, s) != ::sigismember(&b, s)) return false;
  return true;
}

bool same_folder(int folder) {
  struct stat before {}, now {};
  return ::fstat(folder, &before) != 0 || (::stat(".", &now) == 0 && before.st_dev == now.st_dev && before.st_ino == now.st_ino);
}

}  // namespace

#if defined(__x86_64__)
constexpr uint32_t kStickyFlags = 0x3f;
uint64_t FloatMode::read() {
  uint16_t x87 = 0;
  __asm__ volatile("fnstcw %0" : "=m"(x87));
  return (_mm_getcsr() & ~kStickyFlags) | static_cast<uint64_t>(x87) << 32;
}
void FloatMode::write(uint64_t mode) {
  const auto x87 = static_cast<uint16_t>(mode >> 32);
  __asm__ volatile("fldcw %0" : : "m"(x87));
  _mm_setcsr(static_cast<uint32_t>(mode));
}
#elif defined(__aarch64__)
uint64_t FloatMode::read() {
  uint64_t mode = 0;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
void FloatMode::write(uint64_t mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
#else
uint64_t FloatMode::read() { return 0; }
void FloatMode::write(uint64_t) {}
#endif

ThreadState::ThreadState() : locale_(::uselocale(nullptr)), folder_(::open(".", O_PATH | O_DIRECTORY | O_CLOEXEC)) {
  const char* const name = ::setlocale(LC_ALL, nullptr);
  global_locale_ = name ? name : "";
  ::sigemptyset(&signals_);
  ::pthread_sigmask(SIG_SETMASK, nullptr, &signals_);
}

ThreadState::~ThreadState() {
  if (folder_ >= 0) ::close(folder_);
}

std::string ThreadState::restore() const {
  std::string changed;
  const auto name = [&](const char* what) { changed += (changed.empty() ? "" : ", ") + std::string(what); };
  if (float_mode_.restore()) name("floating-point mode");
  const char* const global = ::setlocale(LC_ALL, nullptr);
  if (::uselocale(nullptr) != locale_ || (global && global_locale_ != global)) {
    ::setlocale(LC_ALL, global_locale_.c_str());
    ::uselocale(locale_);
    name("locale");
  }
  sigset_t now;
  ::sigemptyset(&now);
  ::pthread_sigmask(SIG_SETMASK, nullptr, &now);
  if (!same(now, signals_)) {
    ::pthread_sigmask(SIG_SETMASK, &signals_, nullptr);
    name("signal mask");
  }
  if (folder_ >= 0 && !same_folder(folder_) && ::fchdir(folder_) == 0) name("current folder");
  return changed;
}

}  // namespace keirin
