// SPDX-License-Identifier: Apache-2.0
#include "core/tune/beside_others.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "core/tune/interference.h"

namespace keirin {

OwnClock::OwnClock() : file_(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {
  if (file_ < 0 || delay_ns(file_)) return;
  ::close(file_);
  file_ = -1;
}

OwnClock::~OwnClock() {
  if (file_ >= 0) ::close(file_);
}

uint64_t OwnClock::now_ns() {
  // A wait between the two readings would be in one of them only.
  for (std::optional<uint64_t> before = delay_ns(file_);;) {
    const auto wall = static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
    const std::optional<uint64_t> after = delay_ns(file_);
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
