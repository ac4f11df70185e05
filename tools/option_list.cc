// SPDX-License-Identifier: Apache-2.0
//
// keirin options: the options, environment variables and exit codes as a page of Markdown, which is docs/options.md.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "tools/options.h"

namespace keirin::tools {

namespace {

void print_page(std::FILE* out) {
  fmt::print(out, "{}\n## Exit codes\n\nOf every word of the command, for scripts (`tools/exits.def`).\n\n| code | |\n|---|---|\n",
             options_page());
#define KRN_EXIT(name, code, text) fmt::print(out, "| {} | {} |\n", code, text);
#include "tools/exits.def"
#undef KRN_EXIT
}

nlohmann::json all_of_it() {
  nlohmann::json options = nlohmann::json::array(), variables = nlohmann::json::array(), exits = nlohmann::json::array();
  for (const OptionRow& row : option_rows())
    options.push_back({{"name", row.name}, {"flag", row.flag.empty() ? "" : flag_name(row)}, {"variable", row.variable},
                       {"values", allowed_text(row)}, {"list", row.list}, {"in_api", row.in_api}, {"decides", row.decides},
                       {"text", row.text}});
  for (const VariableRow& row : variable_rows()) variables.push_back({{"name", row.name}, {"decides", row.decides}, {"text", row.text}});
#define KRN_EXIT(name, code, text) exits.push_back({{"code", code}, {"text", text}});
#include "tools/exits.def"
#undef KRN_EXIT
  return {{"schema", "keirin/options/1"}, {"options", options}, {"variables", variables}, {"exit_codes", exits}};
}

}  // namespace

void add_option_list(CLI::App& app, int& exit_code) {
  auto json = std::make_shared<std::string>();
  CLI::App* word = app.add_subcommand("options", "list options, environment variables and exit codes, as Markdown");
  add_json(*word, *json);
  word->callback([json, &exit_code] {
    print_page(text_out(*json));
    if (json->empty()) return;
    if (const Status status = write_text(*json, all_of_it().dump(2) + "\n"); !status.ok()) exit_code = fail(status);
  });
}

}  // namespace keirin::tools
