// SPDX-License-Identifier: Apache-2.0
#include "core/host/guard/thread_state.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <mutex>
#include <optional>
#include <utility>

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

void name(std::string* changed, const std::string& what) { *changed += (changed->empty() ? "" : ", ") + what; }

struct CallsInFlight {
  std::mutex mutex;
  int number = 0;
  bool several = false;                // at some time since the first of them began
  std::optional<ProcessState> before;  // the first of them
};
CallsInFlight& in_flight() {
  static CallsInFlight* const calls = new CallsInFlight;
  return *calls;
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

ThreadState::ThreadState() : locale_(::uselocale(nullptr)) {
  ::sigemptyset(&signals_);
  ::pthread_sigmask(SIG_SETMASK, nullptr, &signals_);
}

std::string ThreadState::restore() const {
  std::string changed;
  if (float_mode_.restore()) name(&changed, "floating-point mode");
  if (::uselocale(nullptr) != locale_) {
    ::uselocale(locale_);
    name(&changed, "thread's locale");
  }
  sigset_t now;
  ::sigemptyset(&now);
  ::pthread_sigmask(SIG_SETMASK, nullptr, &now);
  if (!same(now, signals_)) {
    ::pthread_sigmask(SIG_SETMASK, &signals_, nullptr);
    name(&changed, "signal mask");
  }
  return changed;
}

ProcessState::ProcessState() : folder_(::open(".", O_PATH | O_DIRECTORY | O_CLOEXEC)) {
  const char* const name = ::setlocale(LC_ALL, nullptr);
  locale_ = name ? name : "";
}

ProcessState::~ProcessState() {
  if (folder_ >= 0) ::close(folder_);
}

std::string ProcessState::restore() const {
  std::string changed;
  if (const char* const now = ::setlocale(LC_ALL, nullptr); now && locale_ != now) {
    ::setlocale(LC_ALL, locale_.c_str());
    name(&changed, "locale");
  }
  if (folder_ >= 0 && !same_folder(folder_) && ::fchdir(folder_) == 0) name(&changed, "current folder");
  return changed;
}

CallState::CallState() {
  CallsInFlight& calls = in_flight();
  const std::lock_guard guard(calls.mutex);
  if (calls.number++ == 0) calls.before.emplace(), calls.several = false;
  else calls.several = true;
}

CallState::~CallState() { (void)leave(); }

std::string CallState::restore() {
  std::string changed = thread_.restore();
  if (const std::string shared = leave(); !shared.empty()) name(&changed, shared);
  return changed;
}

std::string CallState::leave() {
  if (std::exchange(left_, true)) return {};
  CallsInFlight& calls = in_flight();
  const std::lock_guard guard(calls.mutex);
  if (--calls.number > 0) return {};
  const std::string changed = calls.before->restore();
  calls.before.reset();
  return calls.several ? std::string() : changed;
}

}  // namespace keirin
