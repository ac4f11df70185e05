// SPDX-License-Identifier: Apache-2.0
//
// A plan's regions, each alone: run on what eager computes at its border and judged by its error from its own operators in fp64, beside
// eager's. The whole's answer may hide an error (an output that is constant, or far from what is wrong), and where the whole is wrong
// it does not say where. What is found wrong is narrowed down to an operator, or to operators that are wrong only together, and is
// remembered for that build of the plugin: the plan is built again without it, and the rest of it stays. Internal to core/api.
#pragma once

#include "core/api/deciding.h"

namespace keirin {

struct RegionVerdict {
  size_t region = 0;      // of BuiltPlan::regions
  std::string wrong;      // in words; empty: right
  bool decisive = true;   // eager itself is near fp64 here, so that right means something
  std::vector<TensorRef> inputs;  // of one that is not right, as eager had them, in the order of its graph's inputs
};

// Eager steps and regions in the plan's order, on these inputs of the model. `all_outputs`: integers and bools are compared, too, which
// the rounding of a float that was compared with another one may turn; else floats alone.
Result<std::vector<RegionVerdict>> try_regions(Deciding& d, const BuiltPlan& plan, const std::vector<TensorRef>& inputs, bool all_outputs);

struct RepairOptions {
  bool all_outputs = false;  // as in try_regions
  bool decisive = false;     // regions in which nothing is shown are halved, until something is
};

// Builds the candidate's plan without what is wrong in it on these inputs, and says so in the report. True if its plan is another
// one now, which nobody has judged; false if no region alone is wrong, or nothing was left of it (then the candidate is out).
bool repair(Deciding& d, Candidate& candidate, const std::vector<TensorRef>& inputs, const RepairOptions& options);

// Builds the candidate's plan with no operand rounded that eager may have left as it is, and says so in the report. True if its plan is
// another one now; false if nothing was rounded, or nothing was left of it (then the candidate is out).
bool keep_precise(Deciding& d, Candidate& candidate);

}  // namespace keirin
