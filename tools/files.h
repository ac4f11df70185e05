// SPDX-License-Identifier: Apache-2.0
//
// Files of the command's own. Internal to tools/.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include "core/base/status.h"

namespace keirin::tools {

// All of it; `invalid_input` if it cannot be read.
Result<std::string> read_file(const std::filesystem::path& path);

// A folder under TMPDIR that goes with its owner.
class ScratchFolder {
 public:
  // `word` is part of its name. `exhausted` if there can be none.
  static Result<ScratchFolder> make(const std::string& word);
  ScratchFolder(ScratchFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  ~ScratchFolder();

  const std::string& path() const { return path_; }

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace keirin::tools
