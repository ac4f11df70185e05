// SPDX-License-Identifier: Apache-2.0
//
// Launches with their code, arguments, memory and expected results as files (docs/launches.md), for a simulator.
#pragma once

#include <string>

namespace keirin::test {

// Kernel cases of two lengths under each schedule, hand-written kernels, rows of a scatter. 0, or 1 with words on
// standard error.
int write_launches(const std::string& folder, const std::string& arch);

}  // namespace keirin::test
