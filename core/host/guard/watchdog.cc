// SPDX-License-Identifier: Apache-2.0
#include "core/host/guard/watchdog.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "abi/planted.h"
#include "core/base/background.h"
#include "core/base/thread_name.h"
#include "core/host/plugins.h"

namespace keirin {

// The process's, never destroyed: its thread may look while the process ends.
class Watchdog {
 public:
  static Watchdog& of_process() {
    static Watchdog* const watchdog = new Watchdog;
    return *watchdog;
  }

  bool add(Flight& flight) {
    if (fork_count() != forks_) return false;
    const std::lock_guard lock(mutex_);
    if (!started_) started_ = in_foreground([this] { return start(); });  // it watches calls, whoever makes the first plan
    if (!started_) return false;
    flights_.push_back(&flight);
    return true;
  }

  void remove(Flight& flight) {
    std::unique_lock lock(mutex_);
    told_.wait(lock, [&] { return !flight.telling_; });
    std::erase(flights_, &flight);
  }

 private:
  bool start() {
    try {
      std::thread([this] { work(); }).detach();
      return true;
    } catch (const std::system_error&) {
      return false;
    }
  }

  void work() {
    name_thread("keirin-watch");
    for (;;) {
      std::this_thread::sleep_for(Flight::kLook);
      look();
    }
  }

  void look() {
    std::unique_lock lock(mutex_);
    std::vector<Flight*> lasting;
    for (Flight* flight : flights_) {
      const Executable* const in = flight->in_.load(std::memory_order_acquire);
      const uint64_t run = flight->run_.load(std::memory_order_relaxed);
      const bool same = in && run == flight->seen_;
      flight->looks_ = same ? flight->looks_ + 1 : 0;
      flight->seen_ = in ? run : 0;
      if (!same || KRN_PLANTED(hang_unseen)) continue;
      flight->telling_ = true;
      lasting.push_back(flight);
    }
    // Not under the lock, which calls take that need another context: what an executable does about it may write to disk.
    for (Flight* flight : lasting) {
      const int64_t looks = flight->looks_;
      lock.unlock();
      // It may have left meanwhile. The executable is there as long as the flight, which does not go now.
      if (Executable* const in = flight->in_.load(std::memory_order_acquire);
          in && flight->run_.load(std::memory_order_relaxed) == flight->seen_)
        in->still_running(looks * Flight::kLook);
      lock.lock();
      flight->telling_ = false;
    }
    if (!lasting.empty()) told_.notify_all();
  }

  const uint64_t forks_ = fork_count();
  std::mutex mutex_;
  std::condition_variable told_;
  std::vector<Flight*> flights_;
  bool started_ = false;
};

Flight::Flight() : watched_(Watchdog::of_process().add(*this)) {}

Flight::~Flight() {
  if (watched_ && fork_count() == forks_) Watchdog::of_process().remove(*this);
}

}  // namespace keirin
