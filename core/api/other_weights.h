// SPDX-License-Identifier: Apache-2.0
//
// The model with other weights where its own hide what is computed: a head that was initialised with zeros answers zeros whatever the
// layers before it do, and a plan that does nothing would answer so too. What is all zeros is drawn anew, eager and its fp64 referee run
// the file's operators with that, and a candidate's code, region by region the same, is loaded with it and judged. Internal to core/api.
#pragma once

#include <memory>
#include <vector>

#include "core/api/deciding.h"
#include "core/tune/verify.h"

namespace keirin {

class OtherWeights {
 public:
  // Null where no weight of more than one element is all zeros, and for a model that writes or draws random numbers. `d` outlives it.
  static Result<std::unique_ptr<OtherWeights>> make(Deciding& d);

  // The candidate's outputs for the caller's inputs with these weights; `unsupported` where that takes other code.
  Result<Judgement> judge(const Candidate& candidate) const;

 private:
  OtherWeights(Deciding& d, WeightTable weights) : d_(d), weights_(std::move(weights)) {}
  Result<CallFn> call_of(const Candidate& candidate) const;

  Deciding& d_;
  WeightTable weights_;
  FoldedConstants folded_;
  std::unique_ptr<EagerProgram> eager_;
  std::shared_ptr<Prepared> prepared_;  // plans' eager steps call into it
};

}  // namespace keirin
