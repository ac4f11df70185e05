// SPDX-License-Identifier: Apache-2.0
//
// Something that one at a time may do, in the order in which they asked: who has just done it and asks again stands behind those that
// waited meanwhile, which a mutex does not promise.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>

namespace keirin {

// Any thread. As a mutex, for std::lock_guard and std::unique_lock.
class Turn {
 public:
  void lock() {
    static const std::atomic<bool> never{false};
    (void)lock_unless(never);
  }
  // False if `stop` was set before it was this thread's turn; it is looked at every 50 ms.
  bool lock_unless(const std::atomic<bool>& stop) {
    std::unique_lock lock(mutex_);
    const uint64_t own = ++last_;
    line_.push_back(own);
    const auto is_next = [&] { return line_.front() == own; };
    while (!changed_.wait_for(lock, std::chrono::milliseconds(50), is_next)) {
      if (!stop) continue;
      line_.erase(std::find(line_.begin(), line_.end(), own));
      return false;
    }
    return true;
  }
  void unlock() {
    {
      const std::lock_guard lock(mutex_);
      line_.pop_front();
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<uint64_t> line_;  // the first of them has it
  uint64_t last_ = 0;
};

}  // namespace keirin
