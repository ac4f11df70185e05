// SPDX-License-Identifier: Apache-2.0
//
// keirin options: the options and environment variables as a page of Markdown, which is docs/options.md.
#include <fmt/format.h>

#include "tools/options.h"

namespace keirin::tools {

void add_option_list(CLI::App& app) {
  app.add_subcommand("options", "list options and environment variables, as Markdown")->callback([] {
    fmt::print("{}", options_page());
  });
}

}  // namespace keirin::tools
