// SPDX-License-Identifier: Apache-2.0
#include "core/api/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <sstream>
#include <type_traits>

#include "core/api/keirin.h"
#include "core/base/nearest.h"
#include "core/host/plugins.h"

namespace keirin {
namespace {

constexpr bool decides = true, neutral = false;
constexpr bool api = true, inner = false;

// The words of the column `values`.
OptionValues text() { return {}; }
OptionValues words(const char* all) {
  OptionValues out{OptionValues::kWords};
  std::istringstream stream(all);
  for (std::string word; stream >> word;) out.words.push_back(word);
  return out;
}
OptionValues on_off() { return {OptionValues::kSwitch, {"false", "true"}}; }
OptionValues number(double least, double most) { return {OptionValues::kNumber, {}, least, most}; }
OptionValues above(double least, double most) { return {OptionValues::kNumber, {}, least, most, true}; }
OptionValues a_device() { return {OptionValues::kDevice}; }
OptionValues a_pass() { return {OptionValues::kPass}; }
OptionValues a_plugin() { return {OptionValues::kPlugin}; }
OptionValues a_path() { return {OptionValues::kPath}; }
OptionValues a_path_there() { return {OptionValues::kPath, {}, 0, 0, false, true}; }

template <class T>
constexpr bool kIsWord = std::is_enum_v<T> || std::is_same_v<T, bool>;  // stands for its place among the row's words
template <class T>
constexpr bool kIsList = std::is_same_v<T, std::vector<std::string>>;

template <class T>
std::vector<std::string> get(const char* name, const T& field) {
  if constexpr (kIsList<T>) return field;
  else if constexpr (std::is_same_v<T, std::string>) return {field};
  else if constexpr (kIsWord<T>) return {option_row(name).values.words.at(static_cast<size_t>(field))};
  else return {fmt::format("{}", field)};  // the shortest word that reads as this very number
}

template <class T>
bool set(const OptionRow& row, T& field, std::string_view word) {
  if constexpr (kIsList<T>) field.emplace_back(word);
  else if constexpr (std::is_same_v<T, std::string>) field = word;
  else if constexpr (kIsWord<T>)
    field =
        static_cast<T>(std::find(row.values.words.begin(), row.values.words.end(), word) - row.values.words.begin());
  else {
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), field);
    return error == std::errc() && end == word.data() + word.size();
  }
  return true;
}

std::string joined(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, ", ")); }

Status refused(const OptionRow& row, const std::string& what, const std::string& allowed) {
  return Status(Code::k_invalid_input,
                {row.name + " cannot be " + what, "option " + (row.flag.empty() ? row.name : flag_name(row)),
                 "nothing was loaded", "give " + allowed});
}
Status refused(const OptionRow& row, const std::string& what) { return refused(row, what, allowed_text(row)); }

bool switches_off(const OptionRow& row) { return row.flag.starts_with('!'); }
std::string quoted(const std::string& word) { return "\"" + word + "\""; }

Status check_among(const OptionRow& row, const std::string& word, const std::vector<std::string>& known,
                   const std::string& allowed) {
  if (std::find(known.begin(), known.end(), word) != known.end()) return {};
  if (known.empty()) return refused(row, quoted(word) + ": there is none", allowed);
  return refused(row, quoted(word) + ": the nearest is " + quoted(nearest_word(word, known)), allowed);
}

std::vector<std::string> pass_names() {
  std::vector<std::string> names;
  for (const PassRow& row : all_passes()) names.emplace_back(row.name);
  return names;
}

Status check_number(const OptionRow& row, const std::string& word) {
  const OptionValues& v = row.values;
  double number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size())
    return refused(row, quoted(word) + ", which is not a number");
  // So that NaN is outside.
  if ((v.above_least ? number > v.least : number >= v.least) && number <= v.most) return {};
  return refused(row, word);
}

Status check_path(const OptionRow& row, const std::string& word) {
  if (word.empty()) return {};
  if (word[0] != '/') return refused(row, quoted(word) + ", which is not absolute");
  std::error_code error;
  if (!row.values.must_exist || std::filesystem::exists(word, error)) return {};
  return refused(row, quoted(word) + ", which does not exist");
}

Status check_options(const Options& options) {
  static const Options kPlain;
  for (const OptionRow& row : option_rows()) {
    const std::vector<std::string> words = row.get(options);
    if (words == row.get(kPlain)) continue;  // an empty word of a row that may be left out
    for (const std::string& word : words) KRN_TRY(check_word(row, word));
  }
  return {};
}

template <class From, class To>
Status take(const OptionRow& row, const From& from, Options& options, To& to) {
  if constexpr (std::is_same_v<From, To>) return to = from, Status();
  else return set_option(row, options, from);
}

}  // namespace

const std::vector<OptionRow>& option_rows() {
  static const std::vector<OptionRow> kRows = {
#define KRN_OPTION(field, type, initial, values, flag, variable, decides, where, text) \
  {#field, values, flag, variable, decides, where, kIsList<type>, text,                \
   [](const Options& options) { return get(#field, options.field); },                  \
   [](const OptionRow& row, Options& options, std::string_view word) { return set(row, options.field, word); }},
#include "core/api/options.def"
#undef KRN_OPTION
  };
  return kRows;
}

const OptionRow& option_row(std::string_view name) {
  const auto& rows = option_rows();
  return *std::find_if(rows.begin(), rows.end(), [&](const OptionRow& row) { return row.name == name; });
}

std::span<const VariableRow> variable_rows() {
  static const VariableRow kRows[] = {
#define KRN_VARIABLE(name, decides, text) {#name, decides, text},
#include "core/api/variables.def"
#undef KRN_VARIABLE
  };
  return kRows;
}

std::string allowed_text(const OptionRow& row) {
  const OptionValues& v = row.values;
  switch (v.kind) {
    case OptionValues::kText: return "text";
    case OptionValues::kSwitch:
    case OptionValues::kWords: return joined(v.words);
    case OptionValues::kNumber:
      return fmt::format("a number {} {:g} to {:g}", v.above_least ? "above" : "from", v.least, v.most);
    case OptionValues::kDevice: return "cpu, cuda, cuda:N, rocm, rocm:N, or the name of a plugin for the device that it drives";
    case OptionValues::kPass: return joined(pass_names());
    case OptionValues::kPlugin: return "the name of a plugin that `keirin plugins` lists";
    case OptionValues::kPath: return v.must_exist ? "an absolute path to what is there" : "an absolute path";
  }
  return {};
}

std::string flag_name(const OptionRow& row) { return row.flag.substr(switches_off(row)); }
std::string flag_text(const OptionRow& row) { return (switches_off(row) ? "do not " : "") + row.text; }

Status check_word(const OptionRow& row, const std::string& word) {
  switch (row.values.kind) {
    case OptionValues::kText:
    case OptionValues::kDevice:
    case OptionValues::kPlugin: return {};
    case OptionValues::kSwitch:
    case OptionValues::kWords: return check_among(row, word, row.values.words, allowed_text(row));
    case OptionValues::kPass: return check_among(row, word, pass_names(), allowed_text(row));
    case OptionValues::kNumber: return check_number(row, word);
    case OptionValues::kPath: return check_path(row, word);
  }
  return {};
}

Status set_option(const OptionRow& row, Options& options, const std::string& word) {
  KRN_TRY(check_word(row, word));
  if (!row.set(row, options, word)) return refused(row, quoted(word) + ", which is not a whole number");
  return {};
}

Result<Plans> plans_of(const std::string& word) {
  Options options;
  const Status status = set_option(option_row("plans"), options, word);
  if (status.ok()) return options.plans;
  Message message = status.message();
  message.instead = "nothing was changed";
  return Status(status.code(), std::move(message));
}

std::string plans_word(Plans plans) {
  Options options;
  options.plans = plans;
  return option_row("plans").get(options)[0];
}

Result<Options> complete_options(const Options& given) {
  Options options = given;
  for (const OptionRow& row : option_rows()) {
    // Paths are read by the rooms that look who owns them: core/cache and core/host, which also leave out what is not
    // absolute.
    if (row.variable.empty() || row.values.kind == OptionValues::kPath || !row.get(options)[0].empty()) continue;
    if (const char* word = secure_getenv(row.variable.c_str()); word && *word)
      KRN_TRY(set_option(row, options, word).at(row.variable));
    else if (!row.values.words.empty()) KRN_TRY(set_option(row, options, row.values.words[0]));
  }
  KRN_TRY(check_options(options));
  return options;
}

Status check_plugin_names(const Options& options, const PluginHost& host) {
  std::vector<std::string> known;
  for (const PluginReport& report : host.reports())
    if (!report.name.empty()) known.push_back(report.name);
  const std::string found = known.empty() ? "a --plugin: none was found" : "one of those found: " + joined(known);
  for (const std::string& name : options.plugins) KRN_TRY(check_among(option_row("plugins"), name, known, found));
  return {};
}

Result<Options> options_of(const LoadOptions& from) {
  Options options;
#define KRN_OPTION_api(field) KRN_TRY(take(option_row(#field), from.field, options, options.field));
#define KRN_OPTION_inner(field)
#define KRN_OPTION(field, type, initial, values, flag, variable, decides, where, text) KRN_OPTION_##where(field)
#include "core/api/options.def"
#undef KRN_OPTION
#undef KRN_OPTION_inner
#undef KRN_OPTION_api
  options.on_event = from.on_event;
  return options;
}

std::string options_page() {
  static const Options kPlain;
  std::string page = R"(# Options, environment variables, exit codes

Printed by `keirin options` from `core/api/options.def`, `core/api/variables.def` and `tools/exits.def`; `ci/check_options` compares. An
option is given in one of three places: as the flag of `keirin run`, `bench`, `explain`, `serve`, `load`, `plugins` or `doctor`, as the
member of `keirin::LoadOptions` that the column *C++* names, or by the environment variable, which counts where neither
is given. A value that is not allowed is an error (exit code 2) that names the nearest one or the range. What has no
values here is off until it is given.

*Decides*: another value may decide otherwise about a model. Such values are part of the key under which a decision is
kept in the cache, so that nobody is answered by what was decided under other ones.

| option | C++ | values | default | variable | decides | |
|---|---|---|---|---|---|---|
)";
  for (const OptionRow& row : option_rows()) {
    const bool on_or_off = row.values.kind == OptionValues::kSwitch;
    std::string initial = on_or_off || row.list ? "" : row.get(kPlain)[0];
    if (initial.empty() && !row.variable.empty() && !row.values.words.empty()) initial = row.values.words[0];
    page += fmt::format("| `{}` | {} | {} | {} | {} | {} | {} |\n", row.flag.empty() ? row.name : flag_name(row),
                        row.in_api ? "`" + row.name + "`" : "",
                        on_or_off ? "" : allowed_text(row) + (row.list ? "; repeat it for more" : ""), initial,
                        row.variable.empty() ? "" : "`" + row.variable + "`", row.decides ? "yes" : "", flag_text(row));
  }
  page += R"(
## Variables that stand for no option

Those of other libraries are here because what a decision is worth depends on them: they are read by the libraries, and
by Keirin for the key alone.

| variable | decides | |
|---|---|---|
)";
  for (const VariableRow& row : variable_rows())
    page += fmt::format("| `{}` | {} | {} |\n", row.name, row.decides ? "yes" : "", row.text);
  return page;
}

}  // namespace keirin
