// SPDX-License-Identifier: Apache-2.0
#include "tools/files.h"

#include <stdlib.h>

#include <fstream>
#include <sstream>

namespace keirin::tools {
namespace fs = std::filesystem;

Result<std::string> read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  if (!file) return Status(Code::k_invalid_input, {"the file cannot be read", path.string(), "nothing was done", {}});
  return std::move(bytes).str();
}

Result<ScratchFolder> ScratchFolder::make(const std::string& word) {
  std::string path = (fs::temp_directory_path() / ("keirin-" + word + "-XXXXXX")).string();
  if (!::mkdtemp(path.data()))
    return Status(Code::k_exhausted,
                  {"a folder for temporary files cannot be made", path, "nothing was run", "check TMPDIR and the free space"});
  return ScratchFolder(std::move(path));
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

}  // namespace keirin::tools
