// SPDX-License-Identifier: Apache-2.0
//
// keirin plugin new: a copy of the skeleton under another name and with a guid of its own. A copy appears whole or not at all.
// keirin plugin allow, revoke: the list of plugins that may run although nobody names them. Nothing of a plugin runs for that.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "core/base/files.h"
#include "core/host/find/allowed.h"
#include "core/host/find/manifest.h"
#include "tools/files.h"
#include "tools/options.h"

namespace keirin::tools {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kSkeleton = "skeleton";

struct New {
  std::string name, into = ".";
};

Status refuse(std::string what, std::string advice) {
  return Status(Code::k_invalid_input, {std::move(what), {}, "nothing was written", std::move(advice)});
}

// A name is a folder, a library, a target of CMake and, with `_plugin` behind it, a namespace.
Status check_name(const std::string& name) {
  const auto small = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto allowed = [&](char c) { return small(c) || (c >= '0' && c <= '9') || c == '_'; };
  if (name.empty() || name.size() > 40 || !small(name[0]) || !std::all_of(name.begin(), name.end(), allowed))
    return refuse(fmt::format("\"{}\" cannot be a plugin's name", name),
                  "take small letters, digits and _, at most 40, a letter first: acme_npu");
  for (const char* taken : {"keirin", "skeleton", "cpu", "arm", "cuda", "rocm", "reference"})
    if (name == taken)
      return refuse(fmt::format("\"{}\" is the name of a plugin of Keirin's", name), "take another name: yours, or your hardware's");
  for (const char* taken : {"all", "clean", "depend", "edit_cache", "help", "install", "list_install_components", "package",
                            "package_source", "rebuild_cache", "test"})
    if (name == taken)
      return refuse(fmt::format("\"{}\" is the name of a target that CMake makes itself", name), "take another name: acme_npu");
  return {};
}

Result<fs::path> find_skeleton() {
  std::error_code error;
  const fs::path folder = data_folder("skeleton");
  if (fs::is_regular_file(folder / "plugin.cc", error)) return folder;
  return Status(Code::k_unsupported, {"the skeleton, a folder of sources, is not where it was installed", folder.string(),
                                      "nothing was written", "install Keirin again: cmake --install build --component sdk"});
}

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) text.replace(at, from.size(), to);
  return text;
}

// The files of the copy in `folder`, which exists and is empty.
Result<std::string> write_copy(const fs::path& skeleton, const fs::path& folder, const std::string& name) {
  KRN_TRY_LET(std::string guid, read_file("/proc/sys/kernel/random/uuid"));
  guid.resize(std::min<size_t>(guid.size(), 36));
  Manifest manifest;
  KRN_TRY(read_manifest(skeleton / "manifest.toml.in", &manifest));
  if (!parse_guid(guid))
    return Status(Code::k_internal,
                  {"the kernel gave no guid: \"" + guid + "\"", "/proc/sys/kernel/random/uuid", "nothing was written", {}});
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(skeleton, error)) {
    if (!entry.is_regular_file()) continue;
    KRN_TRY_LET(const std::string text, read_file(entry.path()));
    KRN_TRY(write_text(folder / entry.path().filename(), replace_all(replace_all(text, manifest.guid_text, guid), kSkeleton, name)));
  }
  return guid;
}

Status make_new(const New& words) {
  KRN_TRY(check_name(words.name));
  std::error_code error;
  const fs::path into = fs::absolute(words.into).lexically_normal(), folder = into / words.name;
  if (!fs::is_directory(into, error))
    return refuse(fmt::format("there is no folder {}", into.string()), "make it first, or name another one with --into");
  if (fs::exists(fs::symlink_status(folder, error)))
    return refuse(fmt::format("{} is there already", folder.string()),
                  "take another name, or another folder with --into, or move what is there away");
  KRN_TRY_LET(const fs::path skeleton, find_skeleton());
  const fs::path draft = into / fmt::format(".{}.{}", words.name, ::getpid());
  if (!fs::create_directory(draft, error))
    return Status(Code::k_exhausted, {fmt::format("could not make {}: {}", draft.string(), error ? error.message() : "it is there already"),
                                      {},
                                      "nothing was written",
                                      "check the folder's owner and the free space"});
  Result<std::string> guid = write_copy(skeleton, draft, words.name);
  if (guid.ok()) {
    fs::rename(draft, folder, error);
    if (error)
      guid = Status(Code::k_exhausted, {"could not make " + folder.string() + ": " + error.message(), {}, "nothing was written", {}});
  }
  if (!guid.ok()) {
    fs::remove_all(draft, error);
    return std::move(guid).status();
  }
  const fs::path prefix = skeleton.parent_path().parent_path().parent_path();
  const bool installed = !fs::is_symlink(skeleton, error);  // a build folder's is a link to the source tree
  fmt::print("{} is a plugin with the guid {}: it claims relu and add until you change it. Next:\n", folder.string(), *guid);
  if (!installed)
    fmt::print("  cmake --install build --prefix PREFIX      in Keirin's source folder: plugins build against what is installed\n");
  fmt::print("  cmake -S {0} -B {0}/build -DCMAKE_PREFIX_PATH={1} && cmake --build {0}/build\n"
             "  keirin plugins --why --plugin {0}/build\n"
             "  less {0}/README.md\n", words.into == "." ? words.name : folder.string(), installed ? prefix.string() : "PREFIX");
  return {};
}

// The manifest of a library, of its folder, or itself.
Result<fs::path> find_manifest(const std::string& path) {
  std::error_code error;
  const fs::path given = fs::canonical(path, error);
  if (!error) {
    const fs::path manifest = fs::is_directory(given, error)     ? given / "manifest.toml"
                              : given.extension() == ".toml" ? given
                                                             : given.parent_path() / "manifest.toml";
    if (fs::is_regular_file(manifest, error)) return manifest;
  }
  return Status(Code::k_invalid_input, {"there is no plugin: no manifest.toml there or beside it", path, "nothing was changed",
                                        "give the plugin's library, or its folder"});
}

Status allow(const std::string& path) {
  KRN_TRY_LET(const fs::path file, find_manifest(path));
  KRN_TRY(check_owned_path(file.string()));
  Manifest manifest;
  KRN_TRY(read_manifest(file.string(), &manifest));
  const std::vector<HardwareItem> hardware = find_hardware();
  KRN_TRY_LET(const ManifestVariant* const variant, choose_variant(manifest, hardware.front()));
  KRN_TRY(check_owned_path(variant->library));
  AllowedPlugin plugin{manifest.guid_text, {}, manifest.name};
  for (char& c : plugin.name)
    if (static_cast<unsigned char>(c) <= ' ' || c == 0x7f) c = '_';  // a word of its line
  KRN_TRY_LET(plugin.sha256, hash_library(variant->library));
  const std::string list = default_allowed_file();
  KRN_TRY(allow_plugin(list, plugin));
  fmt::print("{} {} of {} may run when it is found\n  {}\n  guid {}\n  SHA-256 {}\n  kept in {}; keirin plugin revoke {} takes it back\n",
             manifest.name, manifest.version, manifest.publisher.empty() ? "an unnamed publisher" : manifest.publisher, variant->library,
             plugin.guid, plugin.sha256, list, plugin.guid);
  return {};
}

Status revoke(const std::string& text) {
  const std::optional<krn_guid> guid = parse_guid(text);
  if (!guid)
    return Status(Code::k_invalid_input, {fmt::format("\"{}\" is no guid: 8-4-4-4-12 hex digits", text), {}, "nothing was changed",
                                          "keirin plugins --json - names each plugin's"});
  KRN_TRY_LET(const AllowedPlugin plugin, revoke_plugin(default_allowed_file(), guid_text(*guid)));
  fmt::print("{} ({}) is not loaded any more where nobody names it\n", plugin.name, plugin.guid);
  return {};
}

}  // namespace

void add_plugin(CLI::App& app, int& exit_code) {
  auto words = std::make_shared<New>();
  CLI::App* word = app.add_subcommand("plugin", "make a plugin; say which ones may run");
  word->require_subcommand(1);
  CLI::App* made = word->add_subcommand("new", "copy the skeleton: a folder that builds, claims relu and add, and is yours to change");
  made->add_option("name", words->name, "of the plugin, its folder and its library: small letters, digits and _")->required();
  made->add_option("--into", words->into, "the folder in which its folder is made")->capture_default_str();
  made->callback([words, &exit_code] {
    Status status = make_new(*words);
    if (!status.ok()) exit_code = fail(status);
  });
  auto path = std::make_shared<std::string>();
  CLI::App* allowed =
      word->add_subcommand("allow", "let a plugin run that is found in a searched folder, as long as its library is this one");
  allowed->add_option("path", *path, "its library, its folder or its manifest")->required();
  allowed->callback([path, &exit_code] {
    const Status status = allow(*path);
    if (!status.ok()) exit_code = fail(status);
  });
  auto guid = std::make_shared<std::string>();
  CLI::App* revoked = word->add_subcommand("revoke", "take that back");
  revoked->add_option("guid", *guid, "the plugin's, as `allow` printed it")->required();
  revoked->callback([guid, &exit_code] {
    const Status status = revoke(*guid);
    if (!status.ok()) exit_code = fail(status);
  });
}

}  // namespace keirin::tools
