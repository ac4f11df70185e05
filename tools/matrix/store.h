// SPDX-License-Identifier: Apache-2.0
//
// A folder of records: log/<date>-<id>.jsonl, one file per sitting, append only, one writer each. Reading trusts
// nothing: what is no record is skipped and told, a torn last line (a crash) among it. The invariant: merging is set
// union by id, so it commutes, and doing it twice changes nothing; what this version does not know is carried through.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/files.h"
#include "tools/matrix/record.h"

namespace keirin::tools::matrix {

// Of a store from elsewhere. Read, it takes about ten times as much memory.
inline constexpr uint64_t kMaxLogBytes = uint64_t{256} << 20;
inline constexpr uint64_t kMaxStoreBytes = uint64_t{1} << 30;
inline constexpr size_t kMaxLogFiles = 100'000;

// Something that was skipped.
struct StoreProblem {
  std::string file;
  size_t line = 0;  // from 1; 0: the file as a whole
  std::string what;
};

class Store {
 public:
  // Reads all logs, so many bytes at most. `invalid_input` if the folder holds no store.
  static Result<Store> read(const std::string& folder, uint64_t most_bytes = kMaxStoreBytes);

  // Each record once, by id: whatever file or order they came in.
  const std::map<std::string, Record>& records() const { return records_; }
  const std::vector<StoreProblem>& problems() const { return problems_; }
  const Record* find(const std::string& id) const;
  // Takes in the lines of a log, whatever they are.
  void read_log(std::string_view bytes, const std::string& name);
  // Takes one in that is not on disk (yet).
  void add(Record record) { records_.emplace(record.id, std::move(record)); }

  struct LogFile {
    std::string name;
    std::vector<std::string> ids;  // in the order of the lines
  };
  const std::vector<LogFile>& files() const { return files_; }

 private:
  void read_file(const std::string& path, const std::string& name, uint64_t* left_bytes);
  std::map<std::string, Record> records_;
  std::vector<StoreProblem> problems_;
  std::vector<LogFile> files_;
};

// Writes the records of one uninterrupted measurement.
class LogWriter {
 public:
  // Makes the store and a new file in it, named by the day and `id`. `exhausted` if it cannot.
  static Result<LogWriter> begin(const std::string& folder, const std::string& id);
  // All of them with one write: a process that dies leaves whole cells and at most one torn line.
  Status append(const std::vector<Record>& records);
  const std::string& path() const { return path_; }

 private:
  LogWriter(Descriptor file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}
  Descriptor file_;
  std::string path_;
};

struct MergeResult {
  size_t added = 0, known = 0;
  std::vector<StoreProblem> problems;  // of the sources
};
// Puts what `into` lacks beside what it has, file by file. Sources are not changed.
Result<MergeResult> merge(const std::string& into, const std::vector<std::string>& sources);

}  // namespace keirin::tools::matrix
