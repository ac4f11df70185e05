// SPDX-License-Identifier: Apache-2.0
//
// One case, compiled once and run on its sets of values, each judged by the case's law.
#pragma once

#include <string>
#include <vector>

#include "tests/conformance/subject.h"

namespace keirin::conformance {

struct Outcome {
  std::string name;   // the case's name and the set of values
  enum { kPassed, kFailed, kUnclaimed } verdict = kPassed;
  std::string reason;
  bool died = false;  // the plugin's process crashed, hung or babbled: the host gives it no more such regions
  bool eager_differs = false;  // kFormula: eager is outside the row's tolerance itself
};

std::vector<Outcome> try_case(const Case& c, Subject& subject, TensorServices& services);

}  // namespace keirin::conformance
