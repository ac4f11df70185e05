// SPDX-License-Identifier: Apache-2.0
//
// One recorded program through the front room: eager, and compiled for each layout of its inputs and called with it and
// with others. The judge here is the recording of Python's eager module: values, sizes, dtypes, strides, what calls
// leave in inputs and state, and who shares memory with whom. It knows nothing of our importer, passes or plugins.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/api/session.h"
#include "tests/programs/case_file.h"

namespace keirin::programs {

struct Settings {
  Options options;
  bool all_layouts = true;  // also compile for the other layouts
  bool wrapped = false;     // inputs by address, as keirin::call passes them, not as views of a storage
};

struct Difference {
  std::string kind;   // values strides sizes dtype shares inputs state kept no_error error compile state_of_compile ...
  std::string where;  // "compiled with contiguous, called with transposed, call 1"
  std::string what;
};

struct Outcome {
  bool compiled = false;  // a plan answered for the first layout
  // Not on the CPU: layouts that PyTorch's own operators answer otherwise on this device (in another order over overlapping memory, or
  // rounded otherwise). They are left out; a program whose first layout is one of them is not tried.
  int other_eager = 0;
  int nodes = 0, nodes_compiled = 0;
  std::vector<Difference> differences;
  std::map<std::string, double> seconds;  // of all that was compiled, by stage
  std::vector<std::string> refused;  // candidates that the judge found wrong
  std::vector<std::string> reasons;  // of the report: why not more was compiled
};

Outcome try_case(const Case& program, Runtime& runtime, const Settings& settings);

}  // namespace keirin::programs
