// SPDX-License-Identifier: Apache-2.0
//
// The models that are served, by name. Which model a name means may change between two requests; none is lost over it.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tools/serve/served_model.h"

namespace keirin::tools {

// Any thread, but that put and remove may not be called by a thread of a served model, for which they wait.
class ModelTable {
 public:
  // Null where no model has the name. Whoever asks the model something keeps what was found until the answer is there: a replaced model
  // ends when nobody holds it.
  std::shared_ptr<ServedModel> find(const std::string& name) const;
  // In the order in which the names came.
  std::vector<std::shared_ptr<ServedModel>> all() const;
  // In place of the model of that name, if there is one: requests from now on are the new one's. Waits until the old one has answered
  // what it was asked and has ended, at most `most`; one that a call hangs in ends later.
  void put(std::shared_ptr<ServedModel> model, std::chrono::milliseconds most = std::chrono::seconds(60));
  // False where no model has the name.
  bool remove(const std::string& name, std::chrono::milliseconds most = std::chrono::seconds(60));
  // Of all models that there have been; `waiting` of those that have a name.
  ServedModel::Counts counts() const;

 private:
  void retire(std::shared_ptr<ServedModel> old, std::chrono::milliseconds most);

  mutable std::mutex mutex_;  // guards what follows
  std::vector<std::shared_ptr<ServedModel>> models_, retired_;
  ServedModel::Counts ended_;  // of those that are no more
};

}  // namespace keirin::tools
