// SPDX-License-Identifier: Apache-2.0
#include "core/base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

namespace keirin {
namespace {

namespace fs = std::filesystem;

std::string errno_text(int error) { return std::generic_category().message(error); }

Code code_of(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return Code::k_exhausted;
    case ELOOP:  // a link where there should be a file of ours
      return Code::k_corrupt;
    default:
      return Code::k_unsupported;
  }
}

Status failure(const std::string& what, const std::string& path, int error) {
  return Status(code_of(error), Message{what + ": " + errno_text(error), path, {}, {}});
}

// Why this file or folder could be changed by somebody else; empty if it could not.
std::string foreign_hand(const struct stat& info) {
  const uid_t me = geteuid();
  if (info.st_uid != me && info.st_uid != 0) return "it belongs to user " + std::to_string(info.st_uid);
  const bool sticky_folder = S_ISDIR(info.st_mode) && (info.st_mode & S_ISVTX);
  if ((info.st_mode & S_IWOTH) && !sticky_folder) return "every user can write it";
  // Many systems give each user a group of their own and umask 002: that group is nobody else's hand.
  const bool own_group = info.st_gid == info.st_uid;
  if ((info.st_mode & S_IWGRP) && !own_group && !sticky_folder) return "its group can write it";
  return {};
}

// File systems over a network or in user space let a signal interrupt what a local one finishes.
template <class Call>
auto retried(Call&& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = retried([&] { return ::write(fd, bytes.data(), bytes.size()); });
    if (n <= 0) {
      if (n == 0) errno = ENOSPC;
      return false;
    }
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Descriptor above_standard(Descriptor fd) {
  constexpr int kFirst = 4;  // 3 is a worker's channel
  if (fd.get() < 0 || fd.get() >= kFirst) return fd;
  return Descriptor(::fcntl(fd.get(), F_DUPFD_CLOEXEC, kFirst));
}

Status check_owned_path(const std::string& path) {
  if (path.empty() || path[0] != '/')
    return Status(Code::k_invalid_input, Message{"the path is not absolute", path, {}, "give the full path"});
  std::error_code ec;
  const fs::path real = fs::canonical(path, ec);
  if (ec) return Status(Code::k_invalid_input, Message{"the file cannot be found: " + ec.message(), path, {}, "build or install it again"});
  for (fs::path at = real;; at = at.parent_path()) {
    struct stat info {};
    if (::lstat(at.c_str(), &info) != 0) return failure("cannot look at the owner", at, errno);
    if (const std::string why = foreign_hand(info); !why.empty())
      return Status(Code::k_invalid_input,
                    Message{"others could have changed it: " + why, at, {},
                            "make it owned by you or root and writable by nobody else (chown, chmod go-w)"});
    if (at == at.root_path()) return {};
  }
}

Status make_private_dir(const std::string& path) {
  if (path.empty() || path[0] != '/')
    return Status(Code::k_invalid_input, Message{"the folder is not absolute", path, {}, "give the full path"});
  std::string part;
  for (size_t end = 1; end != std::string::npos;) {
    end = path.find('/', end);
    part = path.substr(0, end);
    if (end != std::string::npos) ++end;
    if (::mkdir(part.c_str(), 0700) != 0 && errno != EEXIST && errno != EISDIR && errno != EROFS && errno != EACCES)
      return failure("cannot create the folder", part, errno);
  }
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return failure("cannot create the folder", path, errno);
  if (!S_ISDIR(info.st_mode)) return Status(Code::k_invalid_input, Message{"it is not a folder", path, {}, {}});
  if (info.st_uid != geteuid())
    return Status(Code::k_invalid_input, Message{"the folder belongs to user " + std::to_string(info.st_uid), path, {}, {}});
  if (info.st_mode & (S_IWGRP | S_IWOTH))
    return Status(Code::k_invalid_input, Message{"others can write the folder", path, {}, "chmod go-w"});
  return {};
}

Result<std::string> read_private_file(const std::string& path, uint64_t max_bytes) {
  const Descriptor file(retried([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); }));
  if (file.get() < 0) return failure("cannot open the file", path, errno);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return failure("cannot look at the file", path, errno);
  if (!S_ISREG(info.st_mode)) return Status(Code::k_corrupt, Message{"it is not a regular file", path, {}, {}});
  if (info.st_uid != geteuid() || (info.st_mode & (S_IWGRP | S_IWOTH)))
    return Status(Code::k_corrupt, Message{"somebody else could have written it", path, {}, {}});
  if (static_cast<uint64_t>(info.st_size) > max_bytes)
    return Status(Code::k_corrupt, Message{"it is larger than anything written here", path, {}, {}});
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t n = retried([&] { return ::read(file.get(), bytes.data() + have, bytes.size() - have); });
    if (n < 0) return failure("cannot read the file", path, errno);
    if (n == 0) break;
    have += static_cast<size_t>(n);
  }
  bytes.resize(have);
  return bytes;
}

Status publish_file(const std::string& path, std::string_view bytes, bool durable) {
  static std::atomic<uint64_t> counter{0};
  // Unlike the process id alone, the clock keeps a restarted process (in a container: the same id) off its dead namesake's file.
  const std::string temp = path + ".tmp." + std::to_string(::getpid()) + "." +
                           std::to_string(std::chrono::steady_clock::now().time_since_epoch().count()) + "." +
                           std::to_string(counter++);
  {
    const Descriptor file(retried([&] { return ::open(temp.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600); }));
    if (file.get() < 0) return failure("cannot create the file", temp, errno);
    if (!write_all(file.get(), bytes) || (durable && retried([&] { return ::fsync(file.get()); }) != 0)) {
      const int error = errno;
      ::unlink(temp.c_str());
      return failure("cannot write the file", temp, error);
    }
  }
  if (::rename(temp.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temp.c_str());
    return failure("cannot move the file into place", path, error);
  }
  return {};
}

Result<std::optional<FileLock>> FileLock::take(const std::string& path, std::chrono::milliseconds wait) {
  const int fd = retried([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600); });
  if (fd < 0) return failure("cannot open the lock", path, errno);
  FileLock lock(fd);
  const auto end = std::chrono::steady_clock::now() + wait;
  while (retried([&] { return ::flock(fd, LOCK_EX | LOCK_NB); }) != 0) {
    if (errno != EWOULDBLOCK) return failure("cannot lock", path, errno);
    if (std::chrono::steady_clock::now() >= end) return std::optional<FileLock>();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return std::optional<FileLock>(std::move(lock));
}

FileLock::FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);  // closing gives the lock up
}

}  // namespace keirin
