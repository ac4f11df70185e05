// SPDX-License-Identifier: Apache-2.0
//
// A list that many threads read and few replace: an entry, once published, never changes, and who took the list keeps it until he lets
// go, whatever is published meanwhile. A reader waits for no writer's work: what a writer does under the lock that readers take is one
// exchange of pointers. Not std::atomic<std::shared_ptr>: libstdc++'s spins, and a reader would spin for a writer of low priority.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace keirin {

template <class Entry>
class PlanTable {
 public:
  // Entries, and where they have a key() the way to those of one key.
  class List : public std::vector<std::shared_ptr<const Entry>> {
   public:
    // The first entry of that key for which `fits` holds; null: there is none.
    template <class Fits>
    const std::shared_ptr<const Entry>* find(uint64_t key, Fits&& fits) const {
      auto at = std::lower_bound(by_key_.begin(), by_key_.end(), std::pair<uint64_t, uint32_t>(key, 0));
      for (; at != by_key_.end() && at->first == key; ++at)
        if (const auto& entry = (*this)[at->second]; fits(*entry)) return &entry;
      return nullptr;
    }

   private:
    friend class PlanTable;
    void sort_keys() {
      by_key_.clear();
      if constexpr (requires(const Entry& entry) { entry.key(); }) {
        for (uint32_t i = 0; i < this->size(); ++i) by_key_.emplace_back((*this)[i]->key(), i);
        std::sort(by_key_.begin(), by_key_.end());
      }
    }
    std::vector<std::pair<uint64_t, uint32_t>> by_key_;
  };

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
    next->sort_keys();
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
