// SPDX-License-Identifier: Apache-2.0
//
// The plugins that this user allowed (`keirin plugin allow`): a file of lines, a plugin's guid, its library's SHA-256, its name. It decides
// about plugins that lie in a folder which is searched but which nobody named, before any of their code runs. Whoever can write the file
// can have code run here, so it is read only if it and its folders are this user's or root's and nobody else can write them; a file that
// is damaged allows nothing. Ownership is the boundary, the hash is against accidents.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"

namespace keirin {

struct AllowedPlugin {
  std::string guid, sha256, name;
};

class AllowedPlugins {
 public:
  // The list at `path`; without such a file it is empty. A list that is refused is an error, which says why and what to do.
  static Result<AllowedPlugins> read(const std::string& path);

  const std::vector<AllowedPlugin>& all() const { return all_; }
  const AllowedPlugin* find(const std::string& guid) const;

 private:
  std::vector<AllowedPlugin> all_;
};

// keirin/allowed_plugins in XDG_CONFIG_HOME, else in ~/.config; empty if neither is known.
std::string default_allowed_file();

// Both read the file, change one line and put the new file in its place, under a lock. allow takes the place of an older line of the guid;
// revoke is `invalid_input` if there is none.
Status allow_plugin(const std::string& path, const AllowedPlugin& plugin);
Result<AllowedPlugin> revoke_plugin(const std::string& path, const std::string& guid);

// SHA-256 of the file, in hex.
Result<std::string> hash_library(const std::string& path);

}  // namespace keirin
