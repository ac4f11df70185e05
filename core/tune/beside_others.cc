// SPDX-License-Identifier: Apache-2.0
#include "core/tune/beside_others.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <string>

#include "core/tune/interference.h"

namespace keirin {
namespace {

// As the kernel numbers the clocks of threads of the same process; pthread_getcpuclockid() does this for who has a pthread_t.
clockid_t clock_of_thread(int id) { return static_cast<clockid_t>(~static_cast<unsigned>(id) << 3 | 6u); }

}  // namespace

OwnClock::OwnClock(const std::vector<int>& team) {
  const int own = static_cast<int>(::syscall(SYS_gettid));
  std::vector<int> ids{own};
  std::ranges::copy_if(team, std::back_inserter(ids), [own](int id) { return id != own; });
  for (const int id : ids) {
    const std::string path = "/proc/self/task/" + std::to_string(id) + "/schedstat";
    Member& member = members_.emplace_back();
    member.schedstat = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    member.used = id == own ? CLOCK_THREAD_CPUTIME_ID : clock_of_thread(id);
    timespec used{};
    ticks_ = ticks_ && member.schedstat >= 0 && delay_ns(member.schedstat) && ::clock_gettime(member.used, &used) == 0;
  }
  if (ticks_) (void)now_ns();
  total_ns_ = 0;
}

OwnClock::~OwnClock() {
  for (const Member& member : members_)
    if (member.schedstat >= 0) ::close(member.schedstat);
}

uint64_t OwnClock::read() {
  // A wait of this thread between two of the readings would be in one of them only.
  for (std::optional<uint64_t> before = delay_ns(members_[0].schedstat);;) {
    for (Member& member : members_) {
      timespec used{};
      const bool there = ::clock_gettime(member.used, &used) == 0;
      const uint64_t used_ns = static_cast<uint64_t>(used.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(used.tv_nsec);
      member.next_used_ns = std::max(member.used_ns, there ? used_ns : 0);
      member.next_waited_ns = std::max(member.waited_ns, delay_ns(member.schedstat).value_or(0));
    }
    const auto wall_ns = static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
    const std::optional<uint64_t> after = delay_ns(members_[0].schedstat);
    if (before == after) return wall_ns;
    before = after;
  }
}

uint64_t OwnClock::now_ns() {
  if (!ticks_) return total_ns_;
  const uint64_t wall = read();
  uint64_t busiest = 0, accounted = 0;  // by any of them: had a processor, or waited for one
  for (Member& member : members_) {
    const uint64_t used = member.next_used_ns - member.used_ns, waited = member.next_waited_ns - member.waited_ns;
    member.used_ns = member.next_used_ns;
    member.waited_ns = member.next_waited_ns;
    busiest = std::max(busiest, used);
    accounted += used + waited;
  }
  const uint64_t passed = wall - wall_ns_;
  wall_ns_ = wall;
  return total_ns_ += busiest + (passed - std::min(passed, accounted));
}

Result<RaceSheet> race_beside_others(const std::vector<Runner>& runners, RaceOptions options, const std::vector<int>& team) {
  OwnClock clock(team);
  if (!clock.ticks()) return Status(Code::k_unsupported, "the kernel does not count for how long threads wait for a processor");
  ProcessInterference seen(false);  // the hypervisor and the device; waits are in no time
  options.now_ns = [&clock] { return clock.now_ns(); };
  options.interference = &seen;
  options.threshold = std::max(options.threshold, kClearlyFaster);
  options.confirm_ns = 0;
  return race(runners, 0, options);
}

}  // namespace keirin
