// SPDX-License-Identifier: Apache-2.0
//
// keirin matrix: its words on the command line.
#pragma once

#include <CLI/CLI.hpp>

namespace keirin::tools {

void add_matrix(CLI::App& app, int& exit_code);

}  // namespace keirin::tools
