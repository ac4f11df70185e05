// SPDX-License-Identifier: Apache-2.0
//
// What a plugin does with bytes: a damaged region is refused, an artifact gives back the very executable, a damaged artifact is refused
// or does no harm. All of it in this process, which a plugin that believes its bytes takes along.
#pragma once

#include <vector>

#include "tests/conformance/trial.h"

namespace keirin::conformance {

// One outcome for each of the three; without krn.artifact the last two are unclaimed.
std::vector<Outcome> damage_case(const Case& c, Subject& subject);

}  // namespace keirin::conformance
