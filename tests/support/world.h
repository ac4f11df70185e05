// SPDX-License-Identifier: Apache-2.0
//
// What a process holds and how a thread stands, taken before a fault is injected and compared after it: descriptors, threads,
// children, mapped files, temporary files, environment, umask, floating-point mode, locale, signal mask, folder. It judges nothing
// but difference; what may stay (a library is never unmapped) is left out by its reader.
#pragma once

#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/host/guard/thread_state.h"
#include "tests/support/temp_folder.h"

extern char** environ;

namespace keirin::test {

class World {
 public:
  // Pools of LibTorch's start their threads when they first work: a test with it does not count them.
  enum class Count { kEverything, kNoThreads };
  explicit World(Count count = Count::kEverything) : count_(count), before_(look()) {}
  World(const World&) = delete;

  // What is different now, one line each; the thread's state is put back.
  std::vector<std::string> changes() const {
    std::vector<std::string> lines;
    if (const std::string thread = thread_.restore(); !thread.empty()) lines.push_back("thread state: " + thread);
    if (const std::string process = process_.restore(); !process.empty()) lines.push_back("process state: " + process);
    const Held now = look();
    for (const auto& [kind, held] : now) {
      const std::multiset<std::string>& was = before_.at(kind);
      std::vector<std::string> more, less;
      std::set_difference(held.begin(), held.end(), was.begin(), was.end(), std::back_inserter(more));
      std::set_difference(was.begin(), was.end(), held.begin(), held.end(), std::back_inserter(less));
      for (const std::string& one : more) lines.push_back(kind + " left behind: " + one);
      for (const std::string& one : less) lines.push_back(kind + " gone: " + one);
    }
    return lines;
  }

 private:
  using Held = std::map<std::string, std::multiset<std::string>>;

  static std::vector<std::string> names_in(const std::string& folder) {
    std::vector<std::string> names;
    if (DIR* const dir = ::opendir(folder.c_str())) {
      while (const dirent* const entry = ::readdir(dir))
        if (entry->d_name[0] != '.') names.push_back(entry->d_name);
      ::closedir(dir);
    }
    return names;
  }

  Held look() const {
    Held held;
    for (const std::string& fd : names_in("/proc/self/fd")) {
      char target[4096] = {};
      if (::readlink(("/proc/self/fd/" + fd).c_str(), target, sizeof(target) - 1) < 0) continue;  // the one that lists
      const std::string text = target;
      held["descriptor"].insert(text.substr(0, text.find(":[")));  // of a pipe or socket only the kind
    }
    held["thread"];
    if (count_ == Count::kEverything)
      for (size_t i = 0; i < names_in("/proc/self/task").size(); ++i) held["thread"].insert("number " + std::to_string(i));
    held["child"];
    for (const std::string& task : names_in("/proc/self/task")) {
      std::ifstream list("/proc/self/task/" + task + "/children");
      for (std::string pid; list >> pid;) held["child"].insert(pid);
    }
    held["mapped file"];
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);)
      if (const size_t at = line.find('/'); at != std::string::npos && line.find(".so") == std::string::npos &&
                                            line.find("/locale/") == std::string::npos && line.find("gconv") == std::string::npos)
        held["mapped file"].insert(line.substr(at));
    held["temporary file"];
    for (const std::string& name : names_in(temporary_.path()))
      if (name.rfind("keirin-test-", 0) != 0) held["temporary file"].insert(name);  // those are the test's own
    held["variable"];
    for (char** at = environ; *at; ++at)
      if (std::string(*at).rfind("KEIRIN_FAULT_SWITCH", 0) != 0) held["variable"].insert(*at);
    const mode_t mask = ::umask(0);
    ::umask(mask);
    held["umask"].insert(std::to_string(mask));
    return held;
  }

  // Other programs use the system's: for the life of a World this process and its children have a folder of their own.
  class OwnTemporaryFolder {
   public:
    OwnTemporaryFolder() {
      if (const char* const set = ::getenv("TMPDIR")) former_ = set;
      ::setenv("TMPDIR", folder_.path().c_str(), 1);
    }
    ~OwnTemporaryFolder() { former_ ? ::setenv("TMPDIR", former_->c_str(), 1) : ::unsetenv("TMPDIR"); }
    OwnTemporaryFolder(const OwnTemporaryFolder&) = delete;
    const std::string& path() const { return folder_.path(); }

   private:
    const TempFolder folder_;
    std::optional<std::string> former_;
  };

  const Count count_;
  const OwnTemporaryFolder temporary_;
  const ThreadState thread_;
  const ProcessState process_;
  const Held before_;
};

}  // namespace keirin::test
