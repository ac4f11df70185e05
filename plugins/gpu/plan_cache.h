// SPDX-License-Identifier: Apache-2.0
//
// Plans of the process by context and problem. A plan comes in two steps: making it builds its candidates, beside
// others on other threads; settling times them, one problem at a time, so that timings do not disturb one another.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "plugins/gpu/plan.h"

namespace keirin::gpu {

class TimedPlan : public LibraryPlan {
 public:
  virtual void settle() = 0;  // before anything else is asked; again: does nothing
};

// Thread-safe.
class PlanCache {
 public:
  using Key = std::pair<ContextHandle, std::string>;  // a problem's key() in a context
  using Make = std::function<std::shared_ptr<TimedPlan>()>;
  struct Wanted {
    bool is_new = false;  // no engine is remembered
    Make make;
  };

  static Key key_here(const Driver& driver, const std::string& problem);
  // The settled plan; what `make` throws passes through.
  std::shared_ptr<const LibraryPlan> get(const Key& key, const Make& make);
  bool knows(const Key& key) const;
  // Makes what is wanted, in each one's context; what fails is asked for again when its step is made, which says why.
  void prepare(const Driver& driver, const std::map<Key, Wanted>& wanted);

 private:
  mutable std::mutex mutex_;
  std::map<Key, std::shared_ptr<TimedPlan>> plans_;  // not all of them settled
};

}  // namespace keirin::gpu
