// SPDX-License-Identifier: Apache-2.0
//
// What eager's first run of a kind of call showed, as text: kept beside a decision, so that a process which takes the
// decision over need not run eager once more to be shown it again. It may cost time, never correctness: a text that
// does not parse is as good as none, and the graph that comes of it has to be the one that the decision was kept for.
// Internal to core/api.
#pragma once

#include <string>
#include <string_view>

#include "core/api/trial.h"

namespace keirin {

struct KnownRun {
  ObservedRun seen;
  OutputForms forms;
};

std::string known_run_text(const KnownRun& run);
// `corrupt` for what known_run_text would not write.
Result<KnownRun> parse_known_run(std::string_view text);

}  // namespace keirin
