// SPDX-License-Identifier: Apache-2.0
#include "core/tune/beside_others.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>

namespace keirin {
namespace {

uint64_t wall_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// The second number of schedstat: time spent ready and not running.
std::optional<uint64_t> waited_ns(int file) {
  std::array<char, 96> text{};
  const ssize_t size = ::pread(file, text.data(), text.size() - 1, 0);
  unsigned long long used = 0, waited = 0;
  if (size <= 0 || std::sscanf(text.data(), "%llu %llu", &used, &waited) != 2) return {};
  return waited;
}

}  // namespace

OwnClock::OwnClock() : file_(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {
  if (file_ < 0 || waited_ns(file_)) return;
  ::close(file_);
  file_ = -1;
}

OwnClock::~OwnClock() {
  if (file_ >= 0) ::close(file_);
}

uint64_t OwnClock::now_ns() {
  // A wait between the two readings would be in one of them only.
  for (std::optional<uint64_t> before = waited_ns(file_);;) {
    const uint64_t wall = wall_ns();
    const std::optional<uint64_t> after = waited_ns(file_);
    // The kernel's clock for waits is another one, by a microsecond or so.
    if (before == after) return last_ns_ = std::max(last_ns_, wall - before.value_or(0));
    before = after;
  }
}

Result<RaceSheet> race_beside_others(const std::vector<Runner>& runners, RaceOptions options) {
  OwnClock clock;
  if (!clock.ticks()) return Status(Code::k_unsupported, "the kernel does not count for how long threads wait for a processor");
  ProcessInterference seen(false);  // the hypervisor and the device; waits are in no time
  options.now_ns = [&clock] { return clock.now_ns(); };
  options.interference = &seen;
  options.threshold = std::max(options.threshold, kClearlyFaster);
  options.confirm_ns = 0;
  return race(runners, 0, options);
}

}  // namespace keirin
