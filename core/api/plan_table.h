// SPDX-License-Identifier: Apache-2.0
//
// A list that many threads read and few replace: an entry, once published, never changes, and who took the list keeps it until he lets
// go, whatever is published meanwhile. A reader waits for no writer's work: what a writer does under the lock that readers take is one
// exchange of pointers. Not std::atomic<std::shared_ptr>: libstdc++'s spins, and a reader would spin for a writer of low priority.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

namespace keirin {

template <class Entry>
class PlanTable {
 public:
  using List = std::vector<std::shared_ptr<const Entry>>;

  std::shared_ptr<const List> now() const {
    const std::lock_guard lock(pointer_mutex_);
    return list_;
  }
  // `edit` changes a copy, which then takes the list's place. One writer at a time.
  template <class Edit>
  void change(Edit&& edit) {
    const std::lock_guard turn(writer_mutex_);
    auto next = std::make_shared<List>(*now());
    edit(*next);
    std::shared_ptr<const List> old = std::move(next);
    const std::lock_guard lock(pointer_mutex_);
    list_.swap(old);
  }  // the old list goes after the readers' lock is free, or with its last reader

 private:
  mutable std::mutex pointer_mutex_;
  std::mutex writer_mutex_;
  std::shared_ptr<const List> list_ = std::make_shared<const List>();
};

}  // namespace keirin
