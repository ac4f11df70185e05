// SPDX-License-Identifier: Apache-2.0
//
// What each run needs for itself: made for as many runs as have overlapped, then used again.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace keirin::kit {

// Any thread.
template <class T>
class Pool {
 public:
  // Null: none is idle, and the caller makes one.
  std::unique_ptr<T> take() {
    std::lock_guard lock(mutex_);
    if (idle_.empty()) return nullptr;
    auto one = std::move(idle_.back());
    idle_.pop_back();
    return one;
  }
  void give_back(std::unique_ptr<T> one) {
    std::lock_guard lock(mutex_);
    idle_.push_back(std::move(one));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> idle_;
};

}  // namespace keirin::kit
