// SPDX-License-Identifier: Apache-2.0
#include "core/host/find/manifest.h"

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "abi/graph.h"

namespace keirin {
namespace {

constexpr uint64_t kMaxManifestBytes = 64 * 1024;
constexpr AbiVersion kAbi{KRN_ABI_MAJOR, KRN_ABI_MINOR};

Status wrong(const std::string& path, std::string what) {
  return Status(Code::k_corrupt, Message{std::move(what), path, {}, "correct the manifest, or ask the plugin's publisher"});
}

std::optional<AbiVersion> parse_abi(std::string_view text) {
  unsigned major = 0, minor = 0;
  char rest = 0;
  const std::string s(text);
  if (std::sscanf(s.c_str(), "%u.%u%c", &major, &minor, &rest) != 2 || major > 0xffff || minor > 0xffff) return {};
  return AbiVersion{static_cast<uint16_t>(major), static_cast<uint16_t>(minor)};
}

// Build systems spell the system's name in their own case.
bool same_word(std::string_view a, std::string_view b) {
  const auto low = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return low(x) == low(y); });
}

std::string abi_text(AbiVersion v) { return std::to_string(v.major) + "." + std::to_string(v.minor); }

Status read_text_field(const toml::table& table, const std::string& path, std::string_view key, std::string* out) {
  const std::optional<std::string> value = table[key].value<std::string>();
  if (!value || value->empty()) return wrong(path, "`" + std::string(key) + "` is missing or no text");
  *out = *value;
  return {};
}

Status read_ranges(const toml::table& table, Manifest* out) {
  const toml::array* abi = table["abi"].as_array();
  const toml::array* opset = table["opset"].as_array();
  if (!abi || abi->size() != 2 || !opset || opset->size() != 2)
    return wrong(out->path, "`abi` and `opset` are lists of two: the least and the largest version");
  const auto low = parse_abi((*abi)[0].value_or(std::string_view()));
  const auto high = parse_abi((*abi)[1].value_or(std::string_view()));
  if (!low || !high || *high < *low) return wrong(out->path, "`abi` holds no ascending versions like \"0.1\"");
  out->abi_min = *low;
  out->abi_max = *high;
  const int64_t first = (*opset)[0].value_or(int64_t{-1}), last = (*opset)[1].value_or(int64_t{-1});
  if (first < 0 || last < first || last > 0xffffffff) return wrong(out->path, "`opset` holds no ascending numbers");
  out->opset_min = static_cast<uint32_t>(first);
  out->opset_max = static_cast<uint32_t>(last);
  return {};
}

Status read_variant(const toml::table& table, Manifest* out) {
  ManifestVariant variant;
  KRN_TRY(read_text_field(table, out->path, "os_arch", &variant.os_arch));
  KRN_TRY(read_text_field(table, out->path, "library", &variant.library));
  const std::filesystem::path relative(variant.library);
  if (relative.is_absolute()) return wrong(out->path, "`library` must be relative to the manifest: " + variant.library);
  for (const auto& part : relative)
    if (part == "..") return wrong(out->path, "`library` must stay below the manifest: " + variant.library);
  variant.library = (std::filesystem::path(out->path).parent_path() / relative).string();
  variant.sha256 = table["sha256"].value_or(std::string());
  for (const auto& [key, names] : {std::pair("requires_cpu", &variant.requires_cpu), std::pair("shares", &variant.shares)})
    if (const toml::array* list = table[key].as_array())
      for (const toml::node& each : *list) {
        const std::optional<std::string> name = each.value<std::string>();
        if (!name || name->empty() || name->find('/') != std::string::npos)
          return wrong(out->path, "`" + std::string(key) + "` is a list of names");
        names->push_back(*name);
      }
  out->variants.push_back(std::move(variant));
  return {};
}

// toml++ 3.3 takes for granted, with undefined behaviour otherwise, more than broken text keeps (fuzzing found several such places). So it
// only gets lines of a form that holds all a manifest needs: a [header], or a key and a value, which is a string, an integer, true,
// false or a flat list of these; then perhaps a comment.
class ManifestLine {
 public:
  explicit ManifestLine(std::string_view text) : rest_(text) {}

  bool well_formed() {
    if (std::any_of(rest_.begin(), rest_.end(), [](unsigned char c) { return (c < 0x20 && c != '\t') || c == 0x7f; })) return false;
    skip_blanks();
    if (take('[')) {
      const bool list = take('[');
      if (!word() || !take(']') || (list && !take(']'))) return false;
    } else if (!rest_.empty() && rest_[0] != '#') {
      if (!word() || !(skip_blanks(), take('=')) || !value()) return false;
    }
    skip_blanks();
    return rest_.empty() || rest_[0] == '#';
  }

 private:
  void skip_blanks() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t"), rest_.size())); }
  bool take(char c) {
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  // A bare key, an integer, true or false.
  bool word() {
    constexpr std::string_view kBare = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    const size_t length = std::min(rest_.find_first_not_of(kBare), rest_.size());
    rest_.remove_prefix(length);
    return length > 0;
  }
  bool string(char quote) {
    while (!rest_.empty() && rest_[0] != quote) {
      const bool escape = quote == '"' && take('\\');
      if (escape && (rest_.empty() || std::string_view("\\\"bfnrt").find(rest_[0]) == std::string_view::npos)) return false;
      rest_.remove_prefix(1);
    }
    return take(quote);
  }
  bool scalar() {
    for (const char quote : {'"', '\''})
      if (take(quote)) return string(quote) && !rest_.starts_with(quote);  // no string of several lines
    const std::string_view begin = rest_;
    if (!word()) return false;
    const std::string_view text = begin.substr(0, begin.size() - rest_.size());
    const std::string_view digits = text.substr(text[0] == '-' ? 1 : 0);
    return text == "true" || text == "false" ||
           (!digits.empty() && digits.size() <= 18 && digits.find_first_not_of("0123456789") == std::string_view::npos);
  }
  bool value() {
    skip_blanks();
    if (!take('[')) return scalar();
    skip_blanks();
    while (!take(']')) {
      if (!scalar()) return false;
      skip_blanks();
      if (!take(',') && !rest_.starts_with(']')) return false;
      skip_blanks();
    }
    return true;
  }

  std::string_view rest_;
};

Status check_lines(const std::string& path, std::string_view text) {
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!ManifestLine(line).well_formed())
      return wrong(path, "no valid TOML, or more of it than a manifest may use: line " + std::to_string(number) +
                             " is neither a [header] nor a key with a string, an integer, true, false or a list of them");
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return {};
}

}  // namespace

std::optional<krn_guid> parse_guid(std::string_view text) {
  krn_guid guid{};
  size_t digits = 0;
  if (text.size() != 36) return {};
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (i == 8 || i == 13 || i == 18 || i == 23) {
      if (c != '-') return {};
      continue;
    }
    int value;
    if (c >= '0' && c <= '9') value = c - '0';
    else if (c >= 'a' && c <= 'f') value = c - 'a' + 10;
    else if (c >= 'A' && c <= 'F') value = c - 'A' + 10;
    else return {};
    guid.bytes[digits / 2] = static_cast<uint8_t>(guid.bytes[digits / 2] << 4 | value);
    ++digits;
  }
  return guid;
}

std::string guid_text(const krn_guid& guid) {
  static const char kDigits[] = "0123456789abcdef";
  std::string text;
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[guid.bytes[i] >> 4];
    text += kDigits[guid.bytes[i] & 15];
  }
  return text;
}

Status read_manifest(const std::string& path, Manifest* out) {
  out->path = path;
  std::error_code ec;
  const uint64_t size = std::filesystem::file_size(path, ec);
  if (ec) return wrong(path, "the manifest cannot be read: " + ec.message());
  if (size > kMaxManifestBytes) return wrong(path, "the manifest is larger than 64 KiB");
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return wrong(path, "the manifest cannot be read");
  KRN_TRY(check_lines(path, text.str()));
  const toml::parse_result parsed = toml::parse(text.str());
  if (!parsed) {
    const toml::source_position at = parsed.error().source().begin;
    return wrong(path, "no valid TOML: line " + std::to_string(at.line) + ", column " + std::to_string(at.column) + ": " +
                           std::string(parsed.error().description()));
  }
  const toml::table& table = parsed.table();
  const std::optional<int64_t> format = table["manifest_version"].value<int64_t>();
  if (format != 1)
    return Status(Code::k_version, Message{"manifest_version " + (format ? std::to_string(*format) : "is missing") +
                                               " is not known here (this build reads 1)",
                                           path, {}, "use a newer Keirin, or an older plugin"});
  KRN_TRY(read_text_field(table, path, "name", &out->name));
  KRN_TRY(read_text_field(table, path, "version", &out->version));
  KRN_TRY(read_text_field(table, path, "guid", &out->guid_text));
  out->publisher = table["publisher"].value_or(std::string());
  out->support = table["support"].value_or(std::string());
  const std::optional<krn_guid> guid = parse_guid(out->guid_text);
  if (!guid) return wrong(path, "`guid` is not of the form 8-4-4-4-12 hex digits: " + out->guid_text);
  out->guid = *guid;
  out->guid_text = guid_text(*guid);  // one spelling
  KRN_TRY(read_ranges(table, out));
  const toml::array* variants = table["variant"].as_array();
  if (!variants || variants->empty()) return wrong(path, "no [[variant]] names a library");
  for (const toml::node& node : *variants) {
    if (!node.is_table()) return wrong(path, "`variant` is a list of tables");
    KRN_TRY(read_variant(*node.as_table(), out));
  }
  return {};
}

Result<const ManifestVariant*> choose_variant(const Manifest& manifest, const HardwareItem& cpu) {
  // 0.x promises no compatibility between minors of major 0 beyond the offered range, which is one version.
  if (manifest.abi_max < kAbi || kAbi < manifest.abi_min)
    return Status(Code::k_version, Message{"it speaks ABI " + abi_text(manifest.abi_min) + " to " + abi_text(manifest.abi_max) +
                                               ", this host speaks " + abi_text(kAbi),
                                           manifest.path, {}, "rebuild the plugin against this release's abi/plugin.h"});
  if (manifest.opset_max < KRN_OPSET_VERSION || KRN_OPSET_VERSION < manifest.opset_min)
    return Status(Code::k_version, Message{"it reads op-sets " + std::to_string(manifest.opset_min) + " to " +
                                               std::to_string(manifest.opset_max) + ", this host writes " +
                                               std::to_string(KRN_OPSET_VERSION),
                                           manifest.path, {}, "rebuild the plugin against this release's abi/graph.h"});
  std::string why = "it has no variant for " + std::string(host_os_arch());
  for (const ManifestVariant& variant : manifest.variants) {
    if (!same_word(variant.os_arch, host_os_arch())) continue;
    std::string missing;
    for (const std::string& name : variant.requires_cpu)
      if (!has_cpu_feature(cpu, name).value_or(false)) missing += (missing.empty() ? "" : ", ") + name;
    if (missing.empty()) return &variant;
    why = "this processor has no " + missing;
  }
  return Status(Code::k_unsupported, Message{why, manifest.path, {}, "install the plugin's build for this machine"});
}

}  // namespace keirin
