// SPDX-License-Identifier: Apache-2.0
//
// keirin serve and keirin load.
#pragma once

#include "tools/options.h"

namespace keirin::tools {

void add_serve(CLI::App& app, int& exit_code);
void add_load(CLI::App& app, int& exit_code);

}  // namespace keirin::tools
