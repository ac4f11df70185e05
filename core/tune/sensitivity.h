// SPDX-License-Identifier: Apache-2.0
//
// How far a model's answers move in fp64 when every operator's result is off by what rounding it to its own dtype may
// cost: up or down, at random, a few times over. A comparison, a ranking or an iteration can make much of little; then
// eager is far from fp64 as well, or by luck it is not, and neither tells right from wrong. What is no further from
// fp64 than that may be right; whether it is has to be shown in smaller parts (core/api/region_trial.h).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/base/services.h"
#include "core/base/status.h"
#include "core/base/tensor.h"

namespace keirin {

struct Movement {
  double largest = 0;   // of floats, the farthest that an element went
  int64_t changed = 0;  // of integers and bools, the most elements that were others
};

// Of each tensor of the referee's. `run` gives the same ones under errors of a seed, which is above 0.
Result<std::vector<Movement>> movements(std::span<const TensorRef> referee, TensorServices& services,
                                        const std::function<Result<std::vector<TensorRef>>(uint32_t seed)>& run);

// Of a device that may round operands to TF32 (`run`'s second argument): with those roundings only where `eager` is further from the
// referee than roundings to its own dtypes explain. Where eager kept its operands whole, nobody else may round them. `sums`: how many
// roundings the longest sum of the model is good for.
Result<std::vector<Movement>> movements_like(std::span<const TensorRef> referee, std::span<const TensorRef> eager, TensorServices& services,
                                             bool may_round, double sums,
                                             const std::function<Result<std::vector<TensorRef>>(uint32_t seed, bool tf32)>& run);

// What of `other` is further from the referee than that explains, in words; empty if nothing is. Parallel lists.
Result<std::string> unexplained(std::span<const TensorRef> referee, std::span<const TensorRef> other,
                                std::span<const Movement> moved, TensorServices& services);

}  // namespace keirin
