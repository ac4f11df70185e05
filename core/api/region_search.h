// SPDX-License-Identifier: Apache-2.0
//
// Where in a region it is that its code is wrong, or that eager is far from fp64: halves of it and theirs are tried alone, on what eager
// computes there. Internal to core/api.
#pragma once

#include "core/api/deciding.h"

namespace keirin {

// What makes a region wrong.
struct Culprit {
  Hash hash{};          // judged_hash
  std::string what;     // "relu (layer1.act): its output 0: ..."; empty: a smaller part of it is in the list
  bool rounds = false;  // a product that is tried again with its operands as they are
};

struct Culprits {
  std::vector<Culprit> found;
  bool complete = true;  // else the time or the trials ended first
};

// `inputs` of the region, as eager had them; `why` it is wrong. Until `end` (now_s), and for so many trials.
Result<Culprits> find_wrong(Deciding& d, const BuiltPlan& plan, const BuiltRegion& region, const Deciding::Tensors& inputs,
                            const std::string& why, double end);

// The region and those of its halves, their halves and so on, in which eager is far from fp64: the judged_hash of each, so that no plan
// has them. In what then is left of the region it is near, or was not looked at for lack of time.
Result<std::vector<Hash>> find_too_large(Deciding& d, const BuiltPlan& plan, const BuiltRegion& region, const Deciding::Tensors& inputs,
                                         double end);

// The region, its halves and theirs: the judged_hash of each, so that plans have it in eighths.
std::vector<Hash> parts_of(Deciding& d, const BuiltPlan& plan, const BuiltRegion& region, const Deciding::Tensors& inputs);

}  // namespace keirin
