// SPDX-License-Identifier: Apache-2.0
#include "core/host/find/discovery.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>

namespace keirin {
namespace {

namespace fs = std::filesystem;
constexpr const char* kManifestName = "manifest.toml";

class Finder {
 public:
  explicit Finder(Discovery* out) : out_(out) {}

  // `asked`: the caller gave this path, so finding nothing is worth a line.
  void look(const std::string& path, bool asked, bool trusted = true) {
    if (path.empty()) return;
    trusted_ = trusted;
    const size_t before = seen_.size();
    std::string why;
    if (path[0] != '/') {
      why = "the path is not absolute";
    } else if (std::error_code ec; fs::is_directory(path, ec)) {
      look_in_folder(path, asked);
      why = "no manifest.toml in the folder or in the folders in it";
    } else if (fs::exists(path, ec)) {
      const fs::path file(path);
      add(file.extension() == ".toml" ? file : file.parent_path() / kManifestName, asked);
      why = "no manifest.toml beside the library";
    } else {
      why = "there is no such file or folder";
    }
    if (asked && seen_.size() == before && !repeated_) out_->empty_paths.emplace_back(path, why);
    repeated_ = false;
  }

 private:
  void look_in_folder(const fs::path& folder, bool asked) {
    add(folder / kManifestName, asked);
    add_children(folder);
    add_children(folder / "plugins");  // a build tree
  }

  void add_children(const fs::path& folder) {
    std::error_code ec;
    std::vector<fs::path> children;
    for (fs::directory_iterator at(folder, ec), end; !ec && at != end; at.increment(ec)) children.push_back(at->path());
    std::sort(children.begin(), children.end());
    for (const fs::path& child : children) add(child / kManifestName, false);
  }

  void add(const fs::path& manifest, bool exact) {
    std::error_code ec;
    const fs::path real = fs::canonical(manifest, ec);
    if (ec || !fs::is_regular_file(real, ec)) return;
    if (seen_.insert(real.string()).second) out_->manifests.push_back({real.string(), exact, trusted_});
    else repeated_ = true;
  }

  Discovery* out_;
  std::set<std::string> seen_;
  bool repeated_ = false, trusted_ = true;
};

fs::path users_folder() {
  const char* xdg = ::secure_getenv("XDG_DATA_HOME");
  if (xdg && xdg[0] == '/') return fs::path(xdg) / "keirin/plugins";
  const char* home = ::secure_getenv("HOME");
  return home && home[0] == '/' ? fs::path(home) / ".local/share/keirin/plugins" : fs::path();
}

// The folder of the library or program that this code is part of.
fs::path own_folder() {
  std::error_code ec;
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&find_worker), &info) && info.dli_fname && info.dli_fname[0] == '/') {
    const fs::path real = fs::canonical(info.dli_fname, ec);
    if (!ec) return real.parent_path();
  }
  const fs::path program = fs::read_symlink("/proc/self/exe", ec);  // a program's own name may be relative
  return ec ? fs::path() : program.parent_path();
}

}  // namespace

Discovery find_manifests(const std::vector<std::string>& paths, bool search) {
  Discovery found;
  Finder finder(&found);
  for (const std::string& path : paths) finder.look(path, true);
  if (!search) return found;
  if (const char* variable = ::secure_getenv("KEIRIN_PLUGIN_PATH")) {
    std::istringstream list(variable);
    for (std::string path; std::getline(list, path, ':');) finder.look(path, true);
  }
  const auto search_folder = [&](const fs::path& folder, bool trusted) {
    if (std::error_code ec; fs::is_directory(folder, ec)) finder.look(folder.string(), false, trusted);
  };
  if (const fs::path own = own_folder(); !own.empty())
    for (const fs::path& folder : {own / "keirin" / "plugins", own.parent_path() / "lib" / "keirin" / "plugins", own / "plugins"})
      search_folder(folder, true);
  for (const fs::path& folder : {users_folder(), fs::path("/usr/local/lib/keirin/plugins"), fs::path("/usr/lib/keirin/plugins")})
    search_folder(folder, false);
  return found;
}

std::string find_worker() {
  const fs::path own = own_folder();
  for (const fs::path& program : {own / "keirin-worker", own.parent_path() / "libexec" / "keirin" / "worker",
                                  own.parent_path().parent_path() / "libexec" / "keirin" / "worker",
                                  own / "keirin" / "worker"})
    if (::access(program.c_str(), X_OK) == 0) return program.string();
  return {};
}

}  // namespace keirin
