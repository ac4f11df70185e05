// SPDX-License-Identifier: Apache-2.0
//
// What a caller can ask for, as one table: options.def. The struct, the words of the command line, what is refused and
// by which message, and what a decision depends on are made of its rows, so that an option cannot be in one of them and
// missing in another. Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/passes/pass.h"

namespace keirin {

class Interference;
class PluginHost;
struct Event;
struct LoadOptions;

enum class Fallback { kAllow, kWarn, kForbid };  // in the order of the words of its row
enum class When { kNow, kBackground, kNever };   // the same
enum class Trust { kOwn, kNative };              // the same
enum class Plans { kOn, kShadow, kOff };         // the same

struct Options {
#define KRN_OPTION(field, type, initial, values, flag, variable, decides, where, text) type field = initial;
#include "core/api/options.def"
#undef KRN_OPTION
  // No options but callbacks; both may be empty. Told what is being done, by the thread that decides.
  std::function<void(const std::string& stage, double done, double seconds_left)> progress;
  std::function<void(const Event& event)> on_event;  // LoadOptions::on_event
  // For tests: what races are told that others took (core/tune/interference.h); null: what the kernel says. Outlives the session.
  Interference* interference = nullptr;
};

struct OptionValues {
  enum Kind { kText, kSwitch, kWords, kNumber, kDevice, kPass, kPlugin, kPath } kind = kText;
  std::vector<std::string> words = {};  // kSwitch, kWords: all that there are
  double least = 0, most = 0;           // kNumber
  bool above_least = false;             // the least itself is too little
  bool must_exist = false;              // kPath, which is absolute
};

struct OptionRow {
  std::string name;  // the member of Options
  OptionValues values;
  std::string flag, variable;
  bool decides, in_api, list;
  std::string text;
  // The value as words, as `set_option` takes them: one, or those of a list.
  std::vector<std::string> (*get)(const Options& options);
  // Takes over what the row's values allow, at the end of a list; false for what is not a value of the type.
  bool (*set)(const OptionRow& row, Options& options, std::string_view word);
};

struct VariableRow {
  const char* name;
  bool decides;
  const char* text;
};

// Both live as long as the process. Any thread.
const std::vector<OptionRow>& option_rows();
const OptionRow& option_row(std::string_view name);  // of a field of Options
std::span<const VariableRow> variable_rows();

// What a row allows: "allow, warn, forbid"; "a number from 0 to 4096".
std::string allowed_text(const OptionRow& row);
// The flag as it is typed, and what giving it means.
std::string flag_name(const OptionRow& row);
std::string flag_text(const OptionRow& row);

// Whether the row allows the word: invalid_input names option, word, the nearest of the allowed ones or the range, and
// all of them. Whether there is a plugin or a device of that name is asked when plugins are known (check_plugin_names, find_device).
Status check_word(const OptionRow& row, const std::string& word);
// The same, and the option has the value then; a list has one word more.
Status set_option(const OptionRow& row, Options& options, const std::string& word);

// A word of the option `plans` for a model that is loaded, and the way back; invalid_input says that nothing was changed.
Result<Plans> plans_of(const std::string& word);
std::string plans_word(Plans plans);

// What is meant by these options: what was not given comes from the environment, or is what the row begins with;
// invalid_input for a value that its row does not allow, whoever gave it. Runtime and Session begin with it.
Result<Options> complete_options(const Options& options);

// invalid_input where one of `options.plugins` is not the name of a plugin that was found, used or not; lists those that were.
Status check_plugin_names(const Options& options, const PluginHost& host);

// The public API's options as ours; invalid_input for words that are not in the table. The rest is checked by
// complete_options.
Result<Options> options_of(const LoadOptions& options);

// docs/options.md.
std::string options_page();

}  // namespace keirin
