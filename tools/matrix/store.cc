// SPDX-License-Identifier: Apache-2.0
#include "tools/matrix/store.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "core/base/sha256.h"

namespace keirin::tools::matrix {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kEnding = ".jsonl";

Status no_store(const std::string& folder) {
  return Status(Code::k_invalid_input, {"this is not a store of the matrix: it has no folder \"log\"", folder, "nothing was read",
                                        "give the folder that a run wrote with --store"});
}

// Names of logs, sorted: what others named otherwise is not ours to read.
Result<std::vector<std::string>> log_names(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator at(fs::path(folder) / "log", error), end; !error && at != end; at.increment(error)) {
    std::string name = at->path().filename().string();
    if (name.size() > kEnding.size() && name[0] != '.' && name.ends_with(kEnding)) names.push_back(std::move(name));
    if (names.size() > kMaxLogFiles)
      return Status(Code::k_corrupt,
                    {"a store of more than " + std::to_string(kMaxLogFiles) + " files", folder, {}, {}});
  }
  if (error) return no_store(folder);
  std::sort(names.begin(), names.end());
  return names;
}

// A plain file of at most so many bytes, not a link, a pipe or a device.
Result<std::string> read_plain_file(const std::string& path, uint64_t most_bytes) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat info {};
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0)
    return Status(Code::k_corrupt, std::string("could not be opened: ") + ::strerror(errno));
  if (!S_ISREG(info.st_mode)) return Status(Code::k_corrupt, "it is not a plain file");
  if (static_cast<uint64_t>(info.st_size) > most_bytes)
    return Status(Code::k_corrupt, "larger than " + std::to_string(most_bytes) + " bytes, which is all that is read" +
                                       (most_bytes < kMaxLogBytes ? " of a store after the files before it" : ""));
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  size_t got = 0;
  while (got < bytes.size()) {
    const ssize_t n = ::read(file.get(), bytes.data() + got, bytes.size() - got);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    got += static_cast<size_t>(n);
  }
  bytes.resize(got);
  return bytes;
}

}  // namespace

Result<Store> Store::read(const std::string& folder, uint64_t most_bytes) {
  KRN_TRY_LET(const std::vector<std::string> names, log_names(folder));
  Store store;
  for (const std::string& name : names) store.read_file((fs::path(folder) / "log" / name).string(), name, &most_bytes);
  return store;
}

void Store::read_file(const std::string& path, const std::string& name, uint64_t* left_bytes) {
  const Result<std::string> bytes = read_plain_file(path, std::min(*left_bytes, kMaxLogBytes));
  if (!bytes.ok()) {
    problems_.push_back({name, 0, bytes.status().message().what});
    return;
  }
  *left_bytes -= bytes->size();
  read_log(*bytes, name);
}

void Store::read_log(std::string_view bytes, const std::string& name) {
  LogFile file{name, {}};
  size_t number = 0;
  for (size_t begin = 0; begin < bytes.size();) {
    const size_t end = bytes.find('\n', begin);
    ++number;
    if (end == std::string_view::npos) {
      problems_.push_back({name, number, "torn: the line has no end, as after a crash"});
      break;
    }
    Result<Record> record = read_record(bytes.substr(begin, end - begin));
    begin = end + 1;
    if (!record.ok()) {
      problems_.push_back({name, number, record.status().message().what});
      continue;
    }
    file.ids.push_back(record->id);
    add(std::move(*record));
  }
  files_.push_back(std::move(file));
}

const Record* Store::find(const std::string& id) const {
  const auto at = records_.find(id);
  return at == records_.end() ? nullptr : &at->second;
}

Result<LogWriter> LogWriter::begin(const std::string& folder, const std::string& id) {
  const fs::path log = fs::path(folder) / "log";
  std::error_code error;
  fs::create_directories(log, error);
  char day[16];
  const time_t now = ::time(nullptr);
  tm parts{};
  ::gmtime_r(&now, &parts);
  ::strftime(day, sizeof(day), "%Y%m%d", &parts);
  std::string path = (log / (std::string(day) + "-" + id + std::string(kEnding))).string();
  Descriptor file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (file.get() < 0)
    return Status(Code::k_exhausted, {std::string("the log could not be made: ") + ::strerror(errno), path,
                                      "nothing was measured", "give a folder that can be written with --store"});
  return LogWriter(std::move(file), std::move(path));
}

Status LogWriter::append(const std::vector<Record>& records) {
  std::string bytes;
  for (const Record& record : records) bytes += record.line + "\n";
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::write(file_.get(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      return Status(Code::k_exhausted, {std::string("the log could not be written: ") + ::strerror(errno), path_,
                                        "what was written before stands", "check the free space"});
    done += static_cast<size_t>(n);
  }
  return {};
}

Result<MergeResult> merge(const std::string& into, const std::vector<std::string>& sources) {
  std::error_code error;
  const fs::path log = fs::path(into) / "log";
  fs::create_directories(log, error);
  KRN_TRY_LET(Store target, Store::read(into));
  MergeResult result;
  for (const std::string& source : sources) {
    KRN_TRY_LET(const Store from, Store::read(source));
    for (StoreProblem problem : from.problems()) {
      problem.file = (fs::path(source) / "log" / problem.file).string();
      result.problems.push_back(std::move(problem));
    }
    for (const Store::LogFile& file : from.files()) {
      std::string bytes;
      for (const std::string& id : file.ids) {
        if (target.find(id)) {
          ++result.known;
          continue;
        }
        const Record& record = *from.find(id);
        bytes += record.line + "\n";
        target.add(record);
        ++result.added;
      }
      if (bytes.empty()) continue;
      // A name that is taken holds other records of that sitting, of a copy that was torn.
      fs::path path = log / file.name;
      if (fs::exists(fs::symlink_status(path, error)))
        path = log / (file.name.substr(0, file.name.size() - kEnding.size()) + "-" +
                      hex(sha256(bytes.data(), bytes.size())).substr(0, 16) + std::string(kEnding));
      KRN_TRY(publish_file(path.string(), bytes));
      fs::permissions(path, fs::perms(0644), error);  // as a sitting's own: a store is there to be read
    }
  }
  return result;
}

}  // namespace keirin::tools::matrix
