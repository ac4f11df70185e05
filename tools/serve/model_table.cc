// SPDX-License-Identifier: Apache-2.0
#include "tools/serve/model_table.h"

#include <algorithm>
#include <thread>

namespace keirin::tools {
namespace {

auto place_of(auto& models, const std::string& name) {
  return std::find_if(models.begin(), models.end(), [&](const auto& model) { return model->name() == name; });
}

void add(ServedModel::Counts& to, const ServedModel::Counts& counts) {
  to.answered += counts.answered, to.failed += counts.failed, to.refused += counts.refused, to.expired += counts.expired;
  to.calls += counts.calls, to.rows += counts.rows, to.padded_rows += counts.padded_rows, to.waiting += counts.waiting;
}

}  // namespace

std::shared_ptr<ServedModel> ModelTable::find(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = place_of(models_, name);
  return found == models_.end() ? nullptr : *found;
}

std::vector<std::shared_ptr<ServedModel>> ModelTable::all() const {
  const std::lock_guard lock(mutex_);
  return models_;
}

ServedModel::Counts ModelTable::counts() const {
  const std::lock_guard lock(mutex_);
  ServedModel::Counts all = ended_;
  for (const auto& model : models_) add(all, model->counts());
  for (const auto& model : retired_) add(all, model->counts());
  return all;
}

void ModelTable::put(std::shared_ptr<ServedModel> model, std::chrono::milliseconds most) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = place_of(models_, model->name());
    if (found == models_.end()) return models_.push_back(std::move(model));
    found->swap(model);
  }
  retire(std::move(model), most);
}

bool ModelTable::remove(const std::string& name, std::chrono::milliseconds most) {
  std::shared_ptr<ServedModel> old;
  {
    const std::lock_guard lock(mutex_);
    const auto found = place_of(models_, name);
    if (found == models_.end()) return false;
    old = std::move(*found);
    models_.erase(found);
  }
  retire(std::move(old), most);
  return true;
}

// A model's destructor joins its threads, so none of them may be the last to let go of it: it is held here until nobody else does. Nobody
// who asks the table can get it any more.
void ModelTable::retire(std::shared_ptr<ServedModel> old, std::chrono::milliseconds most) {
  const ServedModel* const waited_for = old.get();
  {
    const std::lock_guard lock(mutex_);
    retired_.push_back(std::move(old));
  }
  const auto end = std::chrono::steady_clock::now() + most;
  for (bool waits = true; waits;) {
    std::vector<std::shared_ptr<ServedModel>> free;  // ends outside of the lock
    waits = false;
    {
      const std::lock_guard lock(mutex_);
      for (auto& each : retired_)
        if (each.use_count() == 1) {
          add(ended_, each->counts());  // final: who holds it no more has its answer
          free.push_back(std::move(each));
        } else {
          waits |= each.get() == waited_for;
        }
      std::erase(retired_, nullptr);
    }
    free.clear();
    if (!waits || std::chrono::steady_clock::now() >= end) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace keirin::tools
