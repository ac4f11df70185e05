// SPDX-License-Identifier: Apache-2.0
//
// Making on as many threads as there is new work for; settling under the lock.
#include "plugins/gpu/plan_cache.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

#include "plugins/gpu/device.h"

namespace keirin::gpu {

PlanCache::Key PlanCache::key_here(const Driver& driver, const std::string& problem) {
  std::string ignored;
  ContextHandle context = nullptr;
  if (driver.usable(ignored)) driver.current(context);
  return {context, problem};
}

std::shared_ptr<const LibraryPlan> PlanCache::get(const Key& key, const Make& make) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<TimedPlan>& plan = plans_[key];
  if (!plan) plan = make();
  plan->settle();
  return plan;
}

bool PlanCache::knows(const Key& key) const {
  std::lock_guard lock(mutex_);
  return plans_.count(key) > 0;
}

void PlanCache::prepare(const Driver& driver, const std::map<Key, Wanted>& wanted) {
  const std::vector<std::pair<const Key, Wanted>> list(wanted.begin(), wanted.end());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i; (i = next.fetch_add(1)) < list.size();) {
      const Current current(&driver, list[i].first.first);
      try {
        std::shared_ptr<TimedPlan> plan = list[i].second.make();
        std::lock_guard lock(mutex_);
        plans_.emplace(list[i].first, std::move(plan));
      } catch (const std::exception&) {  // asked for again when its step is made, which says why
      }
    }
  };
  // A thread begins with a handle of its own, which takes longer than to make all plans of a model again whose names
  // are known.
  const auto num_new =
      static_cast<size_t>(std::count_if(list.begin(), list.end(), [](const auto& each) { return each.second.is_new; }));
  std::vector<std::thread> threads;
  for (size_t t = 1; t < std::min<size_t>(num_new, std::thread::hardware_concurrency()); ++t)
    threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace keirin::gpu
