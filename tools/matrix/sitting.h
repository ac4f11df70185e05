// SPDX-License-Identifier: Apache-2.0
//
// One sitting: cells measured on this machine, one after the other, written to the store as they are done. Numerics
// come first: a cell that is wrong is not timed. What the verdicts are is judge.h's question; the sitting asks it which
// cells need more blocks, and which have to be measured once more in fresh processes.
#pragma once

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tools/matrix/cases.h"
#include "tools/matrix/judge.h"
#include "tools/matrix/pair.h"
#include "tools/matrix/place.h"

namespace keirin::tools::matrix {

enum class Purpose {
  kCompare,    // base against head, the same variant
  kSelfcheck,  // the same binary twice: what is the noise here?
  kRun         // one binary: each variant against the better of eager and replay, compiled ones against eager
};

using CellName = std::pair<std::string, std::string>;  // the case's text, the variant

struct SittingPlan {
  Purpose purpose = Purpose::kCompare;
  std::string store;
  std::string base, head;  // commands
  std::vector<Case> cases;
  std::vector<std::string> variants;  // eager, replay, compiled:<plugin>, auto, peer:<name>
  // Not empty: only these cells, which another host's report calls changed, so that a second host confirms or denies it.
  std::set<CellName> confirm;
  std::string peers;                  // the command that trains and runs peer:<name>; "" if none is known
  Place place;                        // the device on which all of it runs
  PairOptions timing;
  double budget_seconds = 0;                     // 0: none; what it cuts off has no record
  double gate = 0;                               // given by hand for all cells; 0: by the store's selfchecks
  bool counts_only = false;                      // times inform here, and decide nothing
  std::function<void(const std::string&)> tell;  // progress, one line each

  bool trains() const {
    return std::any_of(cases.begin(), cases.end(), [](const Case& item) { return item.trains(); });
  }
  bool asks(const Case& item, const std::string& variant) const {
    // A start is told from another build's: beside eager it says nothing, and it counts nothing but time.
    if (item.starts() && (purpose == Purpose::kRun || counts_only || !place.imagined.empty())) return false;
    return item.has(variant) && (confirm.empty() || confirm.count({item.text(), variant}) > 0);
  }
};

// Whether all its cells have a gate on this machine, given or by the store's selfchecks, so that another one is not
// needed.
Result<bool> gates_are_known(const SittingPlan& plan);

// The sitting's name; its records are in the store. `exhausted` if another process measures here, or the store cannot
// be written.
Result<std::string> hold_sitting(const SittingPlan& plan);

}  // namespace keirin::tools::matrix
