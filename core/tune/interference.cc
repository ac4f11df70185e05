// SPDX-License-Identifier: Apache-2.0
#include "core/tune/interference.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "core/base/background.h"

namespace keirin {
namespace {

constexpr uint32_t kMostOfOthers = 5;      // percent
constexpr double kMostClockChange = 1.25;  // under a power limit clocks move by a tenth with the work itself

constexpr uint64_t kSwitchNs =
    1'000'000;  // what one involuntary switch costs at least, where only their number is known

uint64_t clock_ns(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

uint64_t involuntary_switches(int who) {
  rusage usage{};
  ::getrusage(who, &usage);
  return static_cast<uint64_t>(usage.ru_nivcsw);
}

// Threads of this process that run or want to.
long num_running_threads() {
  long out = 0;
  DIR* folder = ::opendir("/proc/self/task");
  if (!folder) return 0;
  while (const dirent* entry = ::readdir(folder)) {
    std::ifstream file(std::string("/proc/self/task/") + entry->d_name + "/stat");
    std::string line;
    // "29377 (the name) R ...", and names may hold anything.
    const size_t name = std::getline(file, line) ? line.rfind(')') : std::string::npos;
    out += name != std::string::npos && line.compare(name, 3, ") R") == 0;
  }
  ::closedir(folder);
  return out;
}

}  // namespace

std::optional<uint64_t> delay_ns(int schedstat) {
  std::array<char, 96> text{};
  const ssize_t size = ::pread(schedstat, text.data(), text.size() - 1, 0);
  unsigned long long used = 0, delay = 0;
  if (size <= 0 || std::sscanf(text.data(), "%llu %llu", &used, &delay) != 2) return {};
  return delay;
}

std::string what_disturbed(const DeviceCondition& before, const DeviceCondition& after) {
  const uint32_t others = std::max(before.others_percent, after.others_percent);
  if (others > kMostOfOthers) return "other processes had work on the device in " + std::to_string(others) + " % of the time";
  if (before.slowed || after.slowed) return "heat or the power supply held the device's clocks down";
  const auto [low, high] = std::minmax(before.clock_mhz, after.clock_mhz);
  if (low > 0 && high > low * kMostClockChange)
    return "the device's clock went from " + std::to_string(before.clock_mhz) + " to " + std::to_string(after.clock_mhz) + " MHz";
  return {};
}

ProcessInterference::ProcessInterference(bool sees_waits)
    : sees_waits_(sees_waits), only_this_thread_(giving_way() != GiveWay::kNot) {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  if (::sched_getaffinity(0, sizeof(mine), &mine) == 0)
    num_processors_ = static_cast<uint64_t>(std::max(1, CPU_COUNT(&mine)));
  load_ = ::open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
  find_threads(true);
  has_delays_ = !threads_.empty();
  last_switches_ = involuntary_switches(only_this_thread_ ? RUSAGE_THREAD : RUSAGE_SELF);
  last_wall_ns_ = clock_ns(CLOCK_MONOTONIC);
  last_used_ns_ = used_ns();
}

ProcessInterference::~ProcessInterference() {
  for (const auto& [id, thread] : threads_) ::close(thread.file);
  if (load_ >= 0) ::close(load_);
}

// Opens what is new. What a thread waited before the first look is nothing to this meter; later ones were born under
// it.
void ProcessInterference::find_threads(bool first) {
  std::vector<int> ids;
  if (only_this_thread_) {
    ids.push_back(static_cast<int>(::syscall(SYS_gettid)));
  } else if (DIR* folder = ::opendir("/proc/self/task")) {
    while (const dirent* entry = ::readdir(folder))
      if (const int id = std::atoi(entry->d_name)) ids.push_back(id);
    ::closedir(folder);
  }
  for (const int id : ids) {
    if (threads_.count(id)) continue;
    const int file = ::open(("/proc/self/task/" + std::to_string(id) + "/schedstat").c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;
    threads_[id] = {file, first ? delay_ns(file).value_or(0) : 0};
  }
}

uint64_t ProcessInterference::delay_of_threads() {
  struct stat folder {};
  // The number of links tells the number of threads; one that ended is noticed by reading it.
  const bool others =
      !only_this_thread_ && ::stat("/proc/self/task", &folder) == 0 && folder.st_nlink - 2 != threads_.size();
  if (others) find_threads(false);
  uint64_t sum = 0;
  bool gone = false;
  const auto read = [&] {
    for (auto at = threads_.begin(); at != threads_.end();) {
      if (const std::optional<uint64_t> now = delay_ns(at->second.file)) {
        sum += *now - std::min(*now, at->second.delay_ns);
        at->second.delay_ns = *now;
        ++at;
      } else {
        ::close(at->second.file);
        at = threads_.erase(at);
        gone = true;
      }
    }
  };
  read();
  if (gone) {  // another one may have come meanwhile, which the number did not tell
    find_threads(false);
    read();
  }
  return sum;
}

uint64_t ProcessInterference::used_ns() { return clock_ns(CLOCK_PROCESS_CPUTIME_ID); }

uint64_t ProcessInterference::waited_ns() {
  if (!sees_waits_) return 0;
  uint64_t delay = 0;
  if (has_delays_) {
    delay = delay_of_threads();
  } else {
    const uint64_t switches = involuntary_switches(only_this_thread_ ? RUSAGE_THREAD : RUSAGE_SELF);
    delay = (switches - last_switches_) * kSwitchNs;
    last_switches_ = switches;
  }
  const uint64_t wall = clock_ns(CLOCK_MONOTONIC), used = used_ns();
  if (!only_this_thread_) {
    const uint64_t had = num_processors_ * (wall - last_wall_ns_), own = used - last_used_ns_;
    delay = std::min(delay, had - std::min(had, own));
  }
  last_wall_ns_ = wall;
  last_used_ns_ = used;
  return total_ns_ += delay;
}

bool ProcessInterference::is_crowded() {
  static const long processors = std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN));
  std::array<char, 96> text{};
  const ssize_t size = sees_waits_ ? ::pread(load_, text.data(), text.size() - 1, 0) : 0;
  // "0.49 1.99 1.59 1/78 29377": loads of the last minutes, then how many threads want to run, of how many.
  long wanted = 0;
  if (size <= 0 || std::sscanf(text.data(), "%*f %*f %*f %ld/", &wanted) != 1 || wanted <= processors) return false;
  return num_running_threads() < wanted;
}

uint64_t ProcessInterference::stolen_ns() {
  std::ifstream file("/proc/stat");
  std::string line;
  unsigned long long user = 0, nice = 0, system = 0, idle = 0, waits = 0, irq = 0, soft = 0, stolen = 0;
  if (!std::getline(file, line) || std::sscanf(line.c_str(), "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user,
                                               &nice, &system, &idle, &waits, &irq, &soft, &stolen) != 8)
    return 0;
  return stolen * 1'000'000'000 / static_cast<uint64_t>(std::max(1L, ::sysconf(_SC_CLK_TCK)));
}

}  // namespace keirin
