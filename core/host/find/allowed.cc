// SPDX-License-Identifier: Apache-2.0
#include "core/host/find/allowed.h"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/base/files.h"
#include "core/base/sha256.h"
#include "core/host/find/manifest.h"

namespace keirin {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kMaxBytes = 1 << 20;
constexpr const char* kHeader = "keirin allowed plugins 1";

Status damaged(const std::string& path, size_t line) {
  return Status(Code::k_corrupt, Message{"the list of allowed plugins is damaged: line " + std::to_string(line), path, "it allows none",
                                         "move it away and allow each plugin again: keirin plugin allow PATH"});
}

bool is_hash(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string text_of(const std::vector<AllowedPlugin>& all) {
  std::string text = std::string(kHeader) + "\n";
  for (const AllowedPlugin& p : all) text += p.guid + " " + p.sha256 + " " + p.name + "\n";
  return text;
}

// Reads, changes and writes with no other process between.
template <class Change>
Status change(const std::string& path, Change&& change_list) {
  if (path.empty())
    return Status(Code::k_unsupported, Message{"there is no place for the list of allowed plugins", "XDG_CONFIG_HOME, HOME",
                                               "nothing was changed", "set one of them to a folder of yours"});
  KRN_TRY(make_private_dir(fs::path(path).parent_path().string()));
  KRN_TRY_LET(const std::optional<FileLock> lock, FileLock::take(path + ".lock", std::chrono::seconds(10)));
  if (!lock)
    return Status(Code::k_timeout,
                  Message{"another process holds the list of allowed plugins", path, "nothing was changed", "try again"});
  KRN_TRY_LET(const AllowedPlugins now, AllowedPlugins::read(path));
  std::vector<AllowedPlugin> all = now.all();
  KRN_TRY(change_list(all));
  return publish_file(path, text_of(all), true);
}

}  // namespace

Result<AllowedPlugins> AllowedPlugins::read(const std::string& path) {
  AllowedPlugins out;
  std::error_code ec;
  if (path.empty() || !fs::exists(fs::symlink_status(path, ec))) return out;
  const auto refused = [&](const Status& status) {
    return Status(status.code(),
                  Message{"the list of allowed plugins is not read: " + status.message().what, status.message().where, "it allows none",
                          "make it and its folders yours and writable by nobody else (chown, chmod go-w)"});
  };
  if (const Status owned = check_owned_path(path); !owned.ok()) return refused(owned);
  const Result<std::string> text = read_private_file(path, kMaxBytes);
  if (!text.ok()) return refused(text.status());
  std::istringstream lines(*text);
  std::string line;
  if (!std::getline(lines, line) || line != kHeader || !text->ends_with('\n')) return damaged(path, 1);
  for (size_t number = 2; std::getline(lines, line); ++number) {
    std::istringstream words(line);
    AllowedPlugin plugin;
    words >> plugin.guid >> plugin.sha256 >> plugin.name;
    const bool whole = words && parse_guid(plugin.guid) && is_hash(plugin.sha256) && !out.find(plugin.guid);
    if (!whole || line != plugin.guid + " " + plugin.sha256 + " " + plugin.name) return damaged(path, number);
    out.all_.push_back(std::move(plugin));
  }
  return out;
}

const AllowedPlugin* AllowedPlugins::find(const std::string& guid) const {
  const auto at = std::find_if(all_.begin(), all_.end(), [&](const AllowedPlugin& p) { return p.guid == guid; });
  return at == all_.end() ? nullptr : &*at;
}

std::string default_allowed_file() {
  const char* xdg = ::secure_getenv("XDG_CONFIG_HOME");
  if (xdg && xdg[0] == '/') return std::string(xdg) + "/keirin/allowed_plugins";
  const char* home = ::secure_getenv("HOME");
  if (home && home[0] == '/') return std::string(home) + "/.config/keirin/allowed_plugins";
  return {};
}

Status allow_plugin(const std::string& path, const AllowedPlugin& plugin) {
  return change(path, [&](std::vector<AllowedPlugin>& all) {
    std::erase_if(all, [&](const AllowedPlugin& p) { return p.guid == plugin.guid; });
    all.push_back(plugin);
    return Status();
  });
}

Result<AllowedPlugin> revoke_plugin(const std::string& path, const std::string& guid) {
  AllowedPlugin revoked;
  KRN_TRY(change(path, [&](std::vector<AllowedPlugin>& all) {
    const auto at = std::find_if(all.begin(), all.end(), [&](const AllowedPlugin& p) { return p.guid == guid; });
    if (at == all.end()) {
      std::string others;
      for (const AllowedPlugin& p : all) others += (others.empty() ? "" : ", ") + p.guid + " (" + p.name + ")";
      return Status(Code::k_invalid_input, Message{"no allowed plugin has the guid " + guid, path, "nothing was changed",
                                                   others.empty() ? "none is allowed" : "those that are allowed: " + others});
    }
    revoked = *at;
    all.erase(at);
    return Status();
  }));
  return revoked;
}

Result<std::string> hash_library(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Sha256 sha;
  char buffer[1 << 16];
  while (file.read(buffer, sizeof(buffer)) || file.gcount() > 0) sha.update(buffer, static_cast<size_t>(file.gcount()));
  if (!file.eof()) return Status(Code::k_unsupported, Message{"the library cannot be read", path, {}, {}});
  return hex(sha.finish());
}

}  // namespace keirin
