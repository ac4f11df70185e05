// SPDX-License-Identifier: Apache-2.0
#include "core/base/background.h"

#include <limits.h>
#include <malloc.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <mutex>
#include <numeric>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/end_flag.h"
#include "core/base/request.h"

namespace keirin {
namespace {

// The kernel's weights: 172 of 1024 + 172.
constexpr int kNiceOfAShare = 8;

constexpr int kKeptAtTheEnd = 64 << 20;   // of a thread's memory, or the process's: bytes
constexpr size_t kLargePiece = 256 << 10;
// Threads that allocate from the same memory wait for each other, and a call must not wait for who gives way: glibc has eight memories a
// processor, which are few where processors are.
constexpr int kMostMemories = 256;

std::mutex g_left_mutex;     // guards what follows
bool g_kept = false;         // freed memory is
std::vector<void*> g_left;   // by threads that ended, each in its memory

constexpr std::chrono::milliseconds kLook{100}, kLookHolds{5000};
constexpr int kMostLooks = 10;  // calls as long as a look may have all processors at once, and leave them again
constexpr int64_t kSpare = 20;  // percent of one processor
constexpr int64_t kIdle = 90;   // percent of all

// How long each processor that this process may use was idle since the system started, in USER_HZ. Empty where nobody says.
std::vector<int64_t> idle_ticks() {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  if (::sched_getaffinity(0, sizeof(mine), &mine) != 0) return {};
  std::vector<int64_t> out;
  std::ifstream file("/proc/stat");
  for (std::string line; std::getline(file, line);) {
    int cpu = 0;
    long long user = 0, nice = 0, system = 0, idle = 0, waits = 0;
    if (std::sscanf(line.c_str(), "cpu%d %lld %lld %lld %lld %lld", &cpu, &user, &nice, &system, &idle, &waits) == 6 && cpu < CPU_SETSIZE &&
        CPU_ISSET(cpu, &mine))
      out.push_back(idle + waits);
  }
  return out;
}

// Processors that were idle, in percent of one, during a look, or during `looks` of them where it was less than `enough`; nothing where
// nobody says.
std::optional<int64_t> idle_percent(int64_t enough, int looks) {
  const auto sum = [](const std::vector<int64_t>& ticks) { return std::accumulate(ticks.begin(), ticks.end(), int64_t{0}); };
  const std::vector<int64_t> before = idle_ticks();
  int64_t percent = 0;
  for (int look = 1; look <= looks && percent < enough; ++look) {
    std::this_thread::sleep_for(kLook);
    const std::vector<int64_t> after = idle_ticks();
    if (after.empty() || after.size() != before.size()) return {};
    percent = (sum(after) - sum(before)) * 100 * 1000 / (::sysconf(_SC_CLK_TCK) * kLook.count() * look);
  }
  return percent;
}

// Whether calls leave so much that work which gives way to all would end. Not a trial: a new thread of the idle policy gets its first 70 ms
// beside whatever else there is. Pieces that follow each other soon share an answer: looking takes longer than many of them.
bool processor_to_spare() {
  static std::mutex mutex;
  static std::chrono::steady_clock::time_point looked;
  static bool spare = true;
  const std::lock_guard lock(mutex);
  if (looked != std::chrono::steady_clock::time_point() && std::chrono::steady_clock::now() - looked < kLookHolds) return spare;
  const std::optional<int64_t> idle = idle_percent(kSpare, kMostLooks);
  looked = std::chrono::steady_clock::now();
  return spare = !idle || *idle >= kSpare;
}

void add_nice(int by) {
  const auto thread = static_cast<id_t>(::syscall(SYS_gettid));
  (void)::setpriority(PRIO_PROCESS, thread, ::getpriority(PRIO_PROCESS, thread) + by);  // the kernel cuts it to what there is
}

// Where the one who waits does what he is asked to.
class Desk {
 public:
  void ask(const std::function<void()>& work) {
    std::unique_lock lock(mutex_);
    work_ = &work;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !work_; });
    if (const std::exception_ptr raised = std::exchange(raised_, nullptr)) std::rethrow_exception(raised);
  }
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return work_ || over_; });
      if (!work_) return;
      lock.unlock();
      std::exception_ptr raised;
      try {
        (*work_)();
      } catch (...) {
        raised = std::current_exception();
      }
      lock.lock();
      raised_ = raised;
      work_ = nullptr;
      changed_.notify_all();
    }
  }
  void close() {
    const std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* work_ = nullptr;
  std::exception_ptr raised_;  // by the work, for who asked
  bool over_ = false;
};

std::atomic<bool> g_held{false};
std::atomic<int> g_standing{0};

thread_local GiveWay t_giving_way = GiveWay::kNot;
thread_local Desk* t_desk = nullptr;

}  // namespace

void give_way(GiveWay how) {
  t_giving_way = how;
  if (how == GiveWay::kNot) return;
  if (how == GiveWay::kButForAShare) return add_nice(kNiceOfAShare);
  const sched_param none{};
  // Unlike a high nice value, the idle policy never takes a processor from a thread that wakes up.
  if (::sched_setscheduler(0, SCHED_IDLE, &none) != 0) add_nice(19);
}

GiveWay giving_way() { return t_giving_way; }

void keep_freed_memory() {
#if defined(__GLIBC__)
  const std::lock_guard lock(g_left_mutex);
  g_kept = true;
  ::mallopt(M_ARENA_MAX, kMostMemories);
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, INT_MAX);
  ::mallopt(M_TOP_PAD, kKeptAtTheEnd);
#endif
}

// glibc looks whether the end of a thread's memory can go when a large piece of it is freed, whoever frees it. By then the thread is gone,
// and with it the small pieces that it kept at hand, which may have held that end.
void leave_memory() {
#if defined(__GLIBC__)
  void* const piece = ::malloc(kLargePiece);
  const std::lock_guard lock(g_left_mutex);
  if (g_kept) g_left.push_back(piece);
  else ::free(piece);
#endif
}

void give_back_memory() {
#if defined(__GLIBC__)
  {
    const std::lock_guard lock(g_left_mutex);
    if (!g_left.empty()) {
      ::mallopt(M_TRIM_THRESHOLD, 0);
      ::mallopt(M_TOP_PAD, 0);
      for (void* const piece : g_left) ::free(piece);
      ::mallopt(M_TRIM_THRESHOLD, INT_MAX);
      ::mallopt(M_TOP_PAD, kKeptAtTheEnd);
      g_left.clear();
    }
  }
  ::malloc_trim(0);
#endif
}

void run_in_background(const std::function<void()>& work) {
  const GiveWay how = processor_to_spare() ? GiveWay::kToAll : GiveWay::kButForAShare;
  Desk desk;
  std::exception_ptr raised;
  std::thread thread;
  try {
    thread = std::thread([&, flag = end_flag(), answers = answers_request()] {
      const RequestScope scope(answers);
      t_desk = &desk;
      end_when(flag);
      give_way(how);
      try {
        work();
      } catch (...) {  // memory that ran out: for who waits, and not the end of the process
        raised = std::current_exception();
      }
      leave_memory();
      desk.close();
    });
  } catch (const std::system_error&) {  // no thread to be had
    return work();
  }
  desk.serve();
  thread.join();
  if (raised) std::rethrow_exception(raised);
}

bool processors_are_idle() {
  const int64_t enough = kIdle * static_cast<int64_t>(idle_ticks().size());
  const std::optional<int64_t> idle = idle_percent(enough, 1);
  return !idle || *idle >= enough;
}

void pass_gate() {
  if (!g_held || t_giving_way == GiveWay::kNot) return;
  ++g_standing;
  // Who has a processor that nobody else wants spins. After some wake-ups of a second virtual processor, calls on the first took 1.7 times
  // as long for 0.1 to 0.3 s, as if the host had put both on one core: that would be measured.
  while (g_held && !is_to_end())
    if (t_giving_way == GiveWay::kButForAShare) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  --g_standing;
}

void hold_background(bool held) { g_held = held; }

int num_held() { return g_standing; }

void run_in_foreground(const std::function<void()>& work) {
  if (t_desk) t_desk->ask(work);
  else work();
}

}  // namespace keirin
