// SPDX-License-Identifier: Apache-2.0
#include "tools/serve/repository.h"

#include <algorithm>
#include <filesystem>

#include "core/api/bundle.h"
#include "core/base/background.h"
#include "core/base/end_flag.h"

namespace keirin::tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSuffixes[] = {".pt2", ".krn"};

Status given_up(const std::string& name) {
  return Status(Code::k_exhausted, {"the server is ending", "model " + name, "what is served stays as it was", {}});
}

}  // namespace

bool is_model_name(const std::string& name) {
  constexpr const char* kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  return !name.empty() && name[0] != '.' && name.find_first_not_of(kAllowed) == std::string::npos;
}

std::vector<std::vector<int64_t>> sizes_to_warm(const ServedModel& model, const WarmShapes& shapes) {
  const auto declared = shapes.find(model.name());
  std::vector<std::vector<int64_t>> sizes = declared == shapes.end() ? WarmShapes::mapped_type() : declared->second;
  if (const OpenedBundle* bundle = model.session().bundle())
    for (const BundledKind& kind : bundle->list.kinds) sizes.push_back(kind.sizes);
  return sizes;
}

Repository::Repository(std::string folder, ModelTable& table, Runtime& runtime, const Options& options, const ServingOptions& serving,
                       const WarmShapes& shapes)
    : folder_(std::move(folder)), table_(table), runtime_(runtime), options_(options), serving_(serving), shapes_(shapes), thread_([this] {
        work();
      }) {}

void Repository::end() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  more_.notify_all();
}

Repository::~Repository() {
  end();
  thread_.join();
}

std::string Repository::file_of(const std::string& name) const {
  if (!is_model_name(name)) return {};
  for (const char* suffix : kSuffixes) {
    const fs::path path = fs::path(folder_) / (name + suffix);
    std::error_code error;
    if (fs::is_regular_file(path, error)) return path.string();
  }
  return {};
}

std::vector<std::string> Repository::names() const {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().stem().string();
    if (file_of(name) == entry.path().string()) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

void Repository::load(const std::string& name, std::function<void(Status)> done) { submit({name, true, std::move(done)}); }
void Repository::unload(const std::string& name, std::function<void(Status)> done) { submit({name, false, std::move(done)}); }

void Repository::submit(Task task) {
  {
    const std::lock_guard lock(mutex_);
    if (!ends_) {
      tasks_.push_back(std::move(task));
      more_.notify_one();
      return;
    }
  }
  task.done(given_up(task.name));
}

void Repository::work() {
  end_when(&ends_);
  for (;;) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      more_.wait(lock, [&] { return ends_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    if (ends_) {
      task.done(given_up(task.name));
    } else if (task.load) {
      task.done(load_now(task.name));
    } else {
      const bool was_there = table_.remove(task.name);
      task.done(was_there ? Status()
                          : Status(Code::k_invalid_input, {"no model is called \"" + task.name + "\"", {}, "nothing was changed", {}}));
    }
  }
}

Status Repository::load_now(const std::string& name) {
  const std::string path = file_of(name);
  if (path.empty())
    return Status(Code::k_invalid_input, {"the repository holds no model \"" + name + "\"", folder_, "nothing was changed",
                                          "put NAME.pt2 or NAME.krn there; POST /v2/repository/index lists the names"});
  // Reading and drawing weights takes a processor for as long as a hundred calls.
  KRN_TRY_LET(auto session, in_background([&] { return Session::open(runtime_, path, options_); }));
  auto model = std::make_shared<ServedModel>(name, runtime_, std::move(session), serving_);
  KRN_TRY(model->warm(sizes_to_warm(*model, shapes_)));
  if (ends_) return given_up(name);
  table_.put(std::move(model));
  return {};
}

}  // namespace keirin::tools
