// SPDX-License-Identifier: Apache-2.0
//
// The crash journal: which plugin call is in progress in this process, in a file that outlives it. Whoever starts next and finds
// an entry of a process that is gone knows which (plugin, region) took it down. Writing costs a few stores and no system call.
// What it cannot tell: a crash from a kill that came in the middle of a call; so only first calls are written down, and not those
// of an earlier boot.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/files.h"
#include "core/base/sha256.h"
#include "core/host/guard/fork_count.h"
#include "core/host/guard/quarantine.h"

namespace keirin {

class Journal {
 public:
  // The process's journal in that folder, shared by all who ask; null if there can be none.
  static std::shared_ptr<Journal> open(const std::string& cache_dir);
  // What processes that are gone left behind; their files are removed.
  static std::vector<BadRecord> collect(const std::string& cache_dir);
  ~Journal();
  Journal(const Journal&) = delete;

  // One call into a plugin, from construction to destruction. A null journal notes nothing.
  class Entry {
   public:
    Entry(std::shared_ptr<Journal> journal, const std::string& plugin, const std::string& guid, const std::string& build,
          const char* function, const Hash& region);
    ~Entry();
    Entry(const Entry&) = delete;

   private:
    std::shared_ptr<Journal> journal_;
    void* slot_ = nullptr;
  };

 private:
  Journal(std::string path, Descriptor file, void* memory)
      : path_(std::move(path)), file_(std::move(file)), memory_(memory) {}
  std::string path_;
  Descriptor file_;  // holds the lock that says this process lives
  void* memory_;     // a Page
  const uint64_t forks_ = fork_count();
};

}  // namespace keirin
