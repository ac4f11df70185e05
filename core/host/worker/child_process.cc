// SPDX-License-Identifier: Apache-2.0
#include "core/host/worker/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>
#include <vector>

extern char** environ;

namespace keirin {
namespace {

constexpr int kChannelFd = 3;
constexpr off_t kLastWordsBytes = 4096;
constexpr size_t kMaxLine = 300;

std::string last_line(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || info.st_size == 0) return {};
  std::string text(static_cast<size_t>(std::min(info.st_size, kLastWordsBytes)), '\0');
  const ssize_t got = ::pread(fd, text.data(), text.size(), info.st_size - static_cast<off_t>(text.size()));
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  const size_t end = text.find_last_not_of(" \n\r\t");
  if (end == std::string::npos) return {};
  const size_t begin = text.find_last_of('\n', end);
  const size_t from = begin == std::string::npos ? 0 : begin + 1;
  return text.substr(from, std::min(end + 1 - from, kMaxLine));
}

Status failed(const char* what, const std::string& program, int error) {
  return Status(Code::k_unsupported, Message{std::string(what) + ": " + ::strerror(error), program, {}, {}});
}

}  // namespace

std::string describe(const ChildEnd& end, const std::string& stage, std::chrono::milliseconds deadline) {
  const std::string heard = end.last_words.empty() ? "" : "; its last words: " + end.last_words;
  if (end.timed_out) return "hung in " + stage + " (no end within " + std::to_string(deadline.count()) + " ms)" + heard;
  if (end.status_known && WIFSIGNALED(end.status)) {
    const int signal = WTERMSIG(end.status);
    return "crashed in " + stage + " (signal " + std::to_string(signal) + ", " + ::strsignal(signal) + ")" + heard;
  }
  if (end.status_known)
    return "ended the process in " + stage + " (exit status " + std::to_string(WEXITSTATUS(end.status)) + ")" + heard;
  return "ended its process in " + stage + heard;
}

Result<ChildProcess> ChildProcess::start(const std::string& program, const char* role, int request, int channel) {
  Descriptor errors = above_standard(Descriptor(::memfd_create("keirin-worker-stderr", MFD_CLOEXEC)));
  if (errors.get() < 0) return failed("no memory file for the child", program, errno);
  (void)::fcntl(errors.get(), F_SETFL, O_APPEND);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  if (request >= 0) ::posix_spawn_file_actions_adddup2(&actions, request, 0);
  else ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, errors.get(), 2);
  ::posix_spawn_file_actions_adddup2(&actions, channel, kChannelFd);
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 34)
  ::posix_spawn_file_actions_addclosefrom_np(&actions, kChannelFd + 1);
#endif
  // Its own group, so that a plugin's helpers die with it; default handlers, so that a crash is a crash.
  sigset_t all, none;
  ::sigfillset(&all);
  ::sigemptyset(&none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  const char* const argv[] = {program.c_str(), role, nullptr};
  // Its threads spin for some 20 us after a loop, which is longer than the way to the next run, and then sleep: the processors are the
  // host's, whose threads would wait for those that spin. GNU's OpenMP would have them spin some 10 ms.
  std::string spins = "GOMP_SPINCOUNT=1000";
  std::vector<char*> settings;
  for (char** each = environ; each && *each; ++each) settings.push_back(*each);
  const bool said = ::getenv("OMP_WAIT_POLICY") || ::getenv("GOMP_SPINCOUNT");
  if (::strcmp(role, "run") == 0 && !said) settings.push_back(spins.data());
  settings.push_back(nullptr);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, program.c_str(), &actions, &attributes, const_cast<char**>(argv), settings.data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) return failed("the child process cannot be started", program, error);
  return ChildProcess(pid, std::move(errors));
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), errors_(std::move(other.errors_)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  errors_ = std::move(other.errors_);
  return *this;
}

ChildProcess::~ChildProcess() {
  if (pid_ >= 0) (void)kill();
}

std::chrono::nanoseconds ChildProcess::waited_for_processor() const {
  int64_t ran = 0, waited = 0;
  std::ifstream("/proc/" + std::to_string(pid_) + "/schedstat") >> ran >> waited;
  return std::chrono::nanoseconds(waited);
}

void ChildProcess::disown() { pid_ = -1; }

// Polls, without a signal handler: the host's SIGCHLD is not ours to touch.
ChildEnd ChildProcess::finish(Clock::time_point deadline) {
  ChildEnd end;
  for (;;) {
    const pid_t got = ::waitpid(pid_, &end.status, WNOHANG);
    if (got == pid_) {
      end.status_known = true;
      break;
    }
    if (got < 0 && errno != EINTR) break;  // the host reaps its children itself
    if (Clock::now() >= deadline) {
      end.timed_out = true;
      ::kill(-pid_, SIGKILL);
      while (::waitpid(pid_, &end.status, 0) < 0 && errno == EINTR) {
      }
      break;
    }
    ::usleep(500);
  }
  ::kill(-pid_, SIGKILL);  // what it may have left behind in its group
  pid_ = -1;
  end.last_words = last_line(errors_.get());
  return end;
}

}  // namespace keirin
