// SPDX-License-Identifier: Apache-2.0
//
// Files that others may have touched: who may have written a path, files that appear whole or not at all, locks between
// processes. Cache, ledger, probe verdicts and plugins all go through here. A path is trusted by ownership, never by its name.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/status.h"

namespace keirin {

// An open descriptor, closed when it goes.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();
  int get() const { return fd_; }

 private:
  int fd_;
};

// The same open file under a number that no standard stream has: a host may have closed its own, and what it prints then must not land
// in a file of ours. Nothing if there is no number left.
Descriptor above_standard(Descriptor fd);

// ok if the file and every parent belong to root or this user and nobody else can write them (a sticky folder counts as
// safe: others cannot replace what is ours in it). The path must be absolute; links are resolved first.
Status check_owned_path(const std::string& path);

// Creates the folder and its parents, 0700; fails if what is there is not ours or others can write it.
Status make_private_dir(const std::string& path);

// The whole file, read once. Refuses links, other owners, files that others can write, and more than max_bytes.
Result<std::string> read_private_file(const std::string& path, uint64_t max_bytes);

// Readers see the old bytes, the new ones or nothing, never a part. `durable` waits for the disk.
Status publish_file(const std::string& path, std::string_view bytes, bool durable = false);

// A lock between processes, by name; gone when the object or the process goes.
class FileLock {
 public:
  // Nothing if another holds it for all of `wait`. A lock file that cannot be made fails with the reason.
  static Result<std::optional<FileLock>> take(const std::string& path, std::chrono::milliseconds wait);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace keirin
