// SPDX-License-Identifier: Apache-2.0
//
// How fast a plugin computes each operator: one case of a row and dtype (speed_cases.cc), raced against eager and against the other
// plugins that claim it, by the statistics that choose between plans. A plugin's figure is shown only where its answer is right.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/services.h"
#include "core/base/status.h"

namespace keirin::conformance {

struct SpeedOptions {
  std::string name, folder;          // the plugin
  std::vector<std::string> others;   // folders of those beside it
  std::string worker;
  std::string pattern;               // of cases, "row/dtype"; empty: all
  double seconds = 240;              // no case is begun after so many
};

// {"arch", "threads", "seconds", "left_out", "others", "cases": [{"operator", "dtype", "sizes", "eager_ns", "plugins": {NAME: {"ns",
// "ratio", "low", "high", "note"}}}]}. `ratio` is eager's time over the plugin's; `note` says why there is no figure, or how much it is
// worth ("disturbed: ..."). Cases that the plugin does not claim are not there; `left_out`: for which there was no time.
Result<nlohmann::json> time_operators(const SpeedOptions& options, TensorServices& services);

}  // namespace keirin::conformance
