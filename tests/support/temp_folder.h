// SPDX-License-Identifier: Apache-2.0
//
// A folder of a test's own, gone with the object; where TMPDIR says, else in the system's place.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

namespace keirin::test {

class TempFolder {
 public:
  TempFolder() : path_((std::filesystem::temp_directory_path() / "keirin-test-XXXXXX").string()) {
    if (!::mkdtemp(path_.data())) throw std::system_error(errno, std::generic_category(), path_);
  }
  ~TempFolder() {
    std::error_code gone;
    std::filesystem::remove_all(path_, gone);
  }
  TempFolder(const TempFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

inline void spill(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

}  // namespace keirin::test
