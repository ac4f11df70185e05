// SPDX-License-Identifier: Apache-2.0
//
// A folder of models from which a running server may be told to load, by name: a new one, or a new version of one that it serves. It is
// opened, decided for the sizes that are declared for it, and only then takes its name over, between two requests.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tools/serve/model_table.h"
#include "tools/serve/warm.h"

namespace keirin::tools {

// Letters, digits, _ - and . , but no first dot: what may stand in a path for a model. No file beside the folder's has such a name.
bool is_model_name(const std::string& name);
// The declared sizes and those that the session's bundle was made for.
std::vector<std::vector<int64_t>> sizes_to_warm(const ServedModel& model, const WarmShapes& shapes);

class Repository {
 public:
  // What it is given outlives it. `shapes` holds for every model that is loaded under one of its names.
  Repository(std::string folder, ModelTable& table, Runtime& runtime, const Options& options, const ServingOptions& serving,
             const WarmShapes& shapes);
  ~Repository();
  // What waits to be loaded, what is being decided for, and what is asked from now on is given up: `done` hears `exhausted`. Any thread.
  void end();

  // The names that can be loaded, sorted: NAME.pt2 or NAME.krn lies in the folder.
  std::vector<std::string> names() const;
  // One after another, by a thread of the repository, which calls `done` once. Calls go on meanwhile, of the version that is there, too; an
  // error leaves what is served as it was. `invalid_input` for a name that no file has.
  void load(const std::string& name, std::function<void(Status)> done);
  // The same for a model that is to be served no more: done when it has answered what it was asked.
  void unload(const std::string& name, std::function<void(Status)> done);

 private:
  struct Task {
    std::string name;
    bool load = true;
    std::function<void(Status)> done;
  };
  void submit(Task task);
  void work();
  Status load_now(const std::string& name);
  std::string file_of(const std::string& name) const;  // empty: there is none

  const std::string folder_;
  ModelTable& table_;
  Runtime& runtime_;
  const Options options_;
  const ServingOptions serving_;
  const WarmShapes& shapes_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable more_;
  std::deque<Task> tasks_;
  std::atomic<bool> ends_{false};
  std::thread thread_;  // last: it uses everything above
};

}  // namespace keirin::tools
