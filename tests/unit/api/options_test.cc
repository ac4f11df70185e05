// SPDX-License-Identifier: Apache-2.0
//
// The table of options against everything that is made of it: what is refused and by which words, the public API's
// struct, and the key of decisions. Each test goes over all rows, so that a new one is tested by being there.
#include "core/api/options.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <limits>
#include <set>
#include <sstream>

#include "core/api/decision_key.h"
#include "core/api/keirin.h"
#include "tests/support/count_members.h"
#include "tests/support/option_words.h"
#include "tests/support/temp_folder.h"

namespace keirin {
namespace {

constexpr size_t kRows = 0
#define KRN_OPTION(field, type, initial, values, flag, variable, decides, where, text) +1
#include "core/api/options.def"
#undef KRN_OPTION
    ;
#define KRN_OPTION_api 1
#define KRN_OPTION_inner 0
#define KRN_OPTION(field, type, initial, values, flag, variable, decides, where, text) +KRN_OPTION_##where
constexpr size_t kApiRows = 0
#include "core/api/options.def"
    ;
#undef KRN_OPTION
#undef KRN_OPTION_inner
#undef KRN_OPTION_api
static_assert(test::count_members<Options>() == kRows + 3,
              "an option that is not a row of core/api/options.def");  // and `progress`, `on_event`, `interference`
static_assert(test::count_members<LoadOptions>() == kApiRows + 1,
              "a member of LoadOptions that is not a row with `api`");  // and `on_event`

// What stands for the decision of a process that was started with these.
std::string key_of(const Options& options, const std::map<std::string, std::string>& library = {}) {
  const Result<Options> complete = complete_options(options);
  EXPECT_TRUE(complete.ok()) << complete.status().text();
  return decision_key(Hash{}, *complete, library).hex();
}

class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Environment() { ::unsetenv(name_); }
  Environment(const Environment&) = delete;

 private:
  const char* name_;
};

TEST(Options, WhatDecidesIsInTheKeyAndNothingElseIs) {
  const test::TempFolder folder;
  const std::string plain = key_of({});
  EXPECT_EQ(key_of({}), plain);
  std::set<std::string> keys{plain};
  size_t deciding = 0;
  for (const OptionRow& row : option_rows()) {
    Options options;
    const Status set = set_option(row, options, test::other_word(row, options, folder.path()));
    ASSERT_TRUE(set.ok()) << set.text();
    ASSERT_NE(row.get(options), row.get({})) << row.name;
    const std::string key = key_of(options);
    if (row.decides) EXPECT_TRUE(keys.insert(key).second) << row.name << " is not in the key, or as another option is";
    else EXPECT_EQ(key, plain) << row.name;
    deciding += row.decides;
  }
  EXPECT_GT(deciding, 10u);
  EXPECT_LT(deciding, option_rows().size());
}

TEST(Options, VariablesThatDecideAreInTheKey) {
  const std::string plain = key_of({});
  std::set<std::string> keys{plain};
  for (const VariableRow& row : variable_rows()) {
    if (::getenv(row.name)) continue;  // HOME, say
    const Environment set(row.name, "1");
    const std::string key = key_of({});
    if (row.decides) EXPECT_TRUE(keys.insert(key).second) << row.name;
    else EXPECT_EQ(key, plain) << row.name;
  }
  for (const OptionRow& row : option_rows()) {
    if (row.variable.empty() || row.values.kind != OptionValues::kWords) continue;
    const Environment set(row.variable.c_str(), row.values.words[1].c_str());
    Options options;
    ASSERT_TRUE(set_option(row, options, row.values.words[0]).ok());
    EXPECT_NE(key_of({}), plain) << row.variable;
    EXPECT_EQ(key_of(options), plain) << "the option counts for more than " << row.variable;
  }
}

TEST(Options, LibraryAndGraphAreInTheKey) {
  EXPECT_NE(key_of({}, {{"numeric_modes", "1"}}), key_of({}));
  EXPECT_NE(key_of({}, {{"numeric_modes", "1"}}), key_of({}, {{"numeric_modes", "2"}}));
  Hash other{};
  other[0] = 1;
  EXPECT_NE(decision_key(other, {}, {}).hex(), decision_key(Hash{}, {}, {}).hex());
}

TEST(Options, AListIsASetInTheKey) {
  Options one, other;
  one.disabled_passes = {"infer", "simplify"};
  other.disabled_passes = {"simplify", "infer", "infer"};
  EXPECT_EQ(key_of(one), key_of(other));
  other.disabled_passes = {"simplify"};
  EXPECT_NE(key_of(one), key_of(other));
}

// Words that the row does not allow, each with what the message has to say beside the option's name.
std::vector<std::pair<std::string, std::string>> bad_words(const OptionRow& row) {
  switch (row.values.kind) {
    case OptionValues::kSwitch:
    case OptionValues::kWords: {
      const std::string& last = row.values.words.back();
      return {{last + "x", "nearest is \"" + last + "\""}, {"", "nearest is"}};
    }
    case OptionValues::kNumber:
      return {{row.values.above_least ? "0" : "-1", allowed_text(row)},
              {"-3", allowed_text(row)},
              {"nan", allowed_text(row)},
              {"inf", allowed_text(row)},
              {"two", "is not a number"},
              {"", "is not a number"}};
    case OptionValues::kPass: return {{"merge_sibling", "nearest is \"merge_siblings\""}};
    case OptionValues::kPath: {
      std::vector<std::pair<std::string, std::string>> words = {{"nope.so", "not absolute"}};
      if (row.values.must_exist) words.emplace_back("/nope.so", "does not exist");
      return words;
    }
    case OptionValues::kDevice:  // both asked when it is known which there are
    case OptionValues::kPlugin:
    case OptionValues::kText: return {};
  }
  return {};
}

TEST(Options, ABadValueIsRefusedByNameWithTheNearestOrTheRange) {
  for (const OptionRow& row : option_rows())
    for (const auto& [word, said] : bad_words(row)) {
      Options options;
      const Status status = set_option(row, options, word);
      ASSERT_FALSE(status.ok()) << row.name << " took \"" << word << "\"";
      EXPECT_EQ(status.code(), Code::k_invalid_input);
      for (const std::string& part : {row.name, word, said, allowed_text(row)})
        EXPECT_NE(status.text().find(part), std::string::npos) << "\"" << part << "\" is not in: " << status.text();
      EXPECT_EQ(row.get(options), row.get({})) << row.name;
      // The same from a caller who fills the struct.
      if (row.values.words.empty() && row.set(row, options, word) && row.get(options) != row.get({})) {
        EXPECT_EQ(complete_options(options).status().code(), Code::k_invalid_input) << row.name << " " << word;
      }
    }
}

TEST(Options, ValuesOfTheirTypesThatMakeNoSense) {
  const auto refused = [](auto change) {
    Options options;
    change(options);
    return complete_options(options).status().code() == Code::k_invalid_input;
  };
  EXPECT_TRUE(refused([](Options& o) { o.mode = "turbo"; }));
  EXPECT_TRUE(refused([](Options& o) { o.threads = -3; }));
  EXPECT_TRUE(refused([](Options& o) { o.budget_seconds = std::nan(""); }));
  EXPECT_TRUE(refused([](Options& o) { o.race_seconds = -std::numeric_limits<double>::infinity(); }));
  EXPECT_TRUE(refused([](Options& o) { o.memory_limit = -0.1; }));
  EXPECT_TRUE(refused([](Options& o) { o.plugin_paths = {"/nope.so"}; }));
  EXPECT_TRUE(refused([](Options& o) { o.plugin_paths = {"/", "relative"}; }));
  EXPECT_TRUE(refused([](Options& o) { o.disabled_passes = {"infer", "infr"}; }));
  EXPECT_FALSE(refused([](Options&) {}));
}

TEST(Options, NumbersKeepTheirLastDigit) {
  Options one, other;
  one.error_budget = 0.1;
  other.error_budget = std::nextafter(0.1, 1);
  EXPECT_NE(key_of(one), key_of(other));
  EXPECT_FALSE(set_option(option_row("threads"), one, "1.5").ok());
  ASSERT_TRUE(set_option(option_row("sample_rate"), one, "18446744073709551615").ok());
  EXPECT_EQ(one.sample_rate, std::numeric_limits<uint64_t>::max());
}

TEST(Options, ABadVariableIsRefusedByItsName) {
  const Environment set("KEIRIN_RUN_IN", "wrker");
  const Status status = complete_options({}).status();
  EXPECT_EQ(status.code(), Code::k_invalid_input);
  for (const char* part : {"KEIRIN_RUN_IN", "wrker", "nearest is \"worker\""})
    EXPECT_NE(status.text().find(part), std::string::npos) << status.text();
  const Environment empty("KEIRIN_RUN_IN", "");
  EXPECT_EQ(complete_options({})->run_in, "process");
}

template <class T>
void put(T& field, const std::string& word) {
  if constexpr (std::is_same_v<T, std::vector<std::string>>) field = {word};
  else if constexpr (std::is_same_v<T, bool>) field = word == "true";
  else if constexpr (std::is_same_v<T, std::string>) field = word;
  else std::istringstream(word) >> field;
}

TEST(Options, ThePublicApiHasTheSameDefaultsAndNames) {
  const test::TempFolder folder;
  const Result<Options> plain = options_of({});
  ASSERT_TRUE(plain.ok()) << plain.status().text();
  for (const OptionRow& row : option_rows()) EXPECT_EQ(row.get(*plain), row.get({})) << row.name;
  LoadOptions others;
#define KRN_OPTION_api(field) put(others.field, test::other_word(option_row(#field), {}, folder.path()));
#define KRN_OPTION_inner(field)
#define KRN_OPTION(field, type, initial, values, flag, variable, decides, where, text) KRN_OPTION_##where(field)
#include "core/api/options.def"
#undef KRN_OPTION
  const Result<Options> changed = options_of(others);
  ASSERT_TRUE(changed.ok()) << changed.status().text();
  for (const OptionRow& row : option_rows()) {
    const std::vector<std::string> value = row.get(*changed);
    if (row.in_api) EXPECT_EQ(value, std::vector<std::string>{test::other_word(row, {}, folder.path())}) << row.name;
    else EXPECT_EQ(value, row.get({})) << row.name;
  }
}

TEST(Options, AModelIsNotLoadedWithWordsThatTheTableLacks) {
  const std::string path = std::string(KEIRIN_SOURCE_DIR) + "/bench/zoo/models/small/mlp.pt2";
  const auto refusal = [&](auto change) -> std::string {
    LoadOptions options;
    change(options);
    try {
      Model::load(path, options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), static_cast<int>(Code::k_invalid_input));
      return error.what();
    }
    return "nothing was refused";
  };
  EXPECT_NE(
      refusal([](LoadOptions& o) { o.mode = "turbo"; }).find("default, reduce-overhead, max-autotune, max-performance"),
      std::string::npos);
  EXPECT_NE(refusal([](LoadOptions& o) { o.fallback = "forbidd"; }).find("nearest is \"forbid\""), std::string::npos);
  EXPECT_NE(refusal([](LoadOptions& o) { o.threads = -3; }).find("a number from 0 to 4096"), std::string::npos);
  EXPECT_NE(refusal([](LoadOptions& o) { o.plugin_paths = {"/nope.so"}; }).find("/nope.so"), std::string::npos);
  EXPECT_NE(refusal([](LoadOptions& o) { o.device = "gpu"; }).find("no such device: gpu; available: cpu"), std::string::npos);
}

TEST(Options, TheirFlagsAndVariablesAreOfOneOptionEach) {
  std::set<std::string> flags, variables;
  for (const OptionRow& row : option_rows()) {
    EXPECT_TRUE(row.flag.empty() || flags.insert(row.flag).second) << row.flag;
    EXPECT_TRUE(row.variable.empty() || variables.insert(row.variable).second) << row.variable;
    EXPECT_FALSE(row.text.empty()) << row.name;
  }
  for (const VariableRow& row : variable_rows()) EXPECT_TRUE(variables.insert(row.name).second) << row.name;
}

}  // namespace
}  // namespace keirin
