// SPDX-License-Identifier: Apache-2.0
//
// keirin options: the options, environment variables and exit codes as a page of Markdown, which is docs/options.md.
#include <fmt/format.h>

#include "tools/options.h"

namespace keirin::tools {

void add_option_list(CLI::App& app) {
  app.add_subcommand("options", "list options, environment variables and exit codes, as Markdown")->callback([] {
    fmt::print("{}\n## Exit codes\n\nOf every word of the command, for scripts (`tools/exits.def`).\n\n| code | |\n|---|---|\n", options_page());
#define KRN_EXIT(name, code, text) fmt::print("| {} | {} |\n", code, text);
#include "tools/exits.def"
#undef KRN_EXIT
  });
}

}  // namespace keirin::tools
