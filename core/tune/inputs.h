// SPDX-License-Identifier: Apache-2.0
//
// Values for measuring and verifying, from facts of the Graph: an index stays below the rows it picks from, offsets ascend,
// masks hold both values, what goes into log, sqrt or a division stays in its domain. Never zeros: a plan of zeros must not
// pass, and zeros run faster than numbers. Deterministic: the same graph, seed and set give the same bytes.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/services.h"
#include "core/ir/graph.h"

namespace keirin {

struct InputHint {
  enum Kind {
    kNormal,    // mean a, deviation b
    kUniform,   // [a, b)
    kPositive,  // |normal| + 0.1: inside the domain of log, sqrt and division
    kIntegers,  // [a, b), both integers
    kAscending, // integers from 0, not descending, at most b; the first is 0
    kMask,      // 0 and 1
    kConstant,  // a everywhere
    kArange,    // 0, 1, 2, ... modulo b if b > 0
    kEdges      // NaN, infinities, -0, the largest and the least value of the dtype, in turn
  };
  Kind kind = kNormal;
  double a = 0, b = 1;
  std::string why;  // the fact it comes from, for reports
  // Integers read by an operator outside the table (pivots, lengths), or any input of a model with an operator that refuses
  // numbers: drawn ones may be illegal.
  bool unknown_meaning = false;
  // Picks rows below b, and b itself may be tried: LibTorch refuses it. That holds for `take`; its gather and scatter do not look on
  // AArch64, where such an index reads and writes what lies behind, and an opaque operator may do anything.
  bool may_be_refused = false;
};

// One hint per user input, by position.
std::vector<InputHint> infer_inputs(const Graph& graph);

struct InputOptions {
  uint64_t seed = 0;
  uint32_t set = 0;  // another set of values: 0, 1, 2 are the rotation
  Device device;
  std::vector<std::optional<InputHint>> overrides;  // by position; what the user knows better
};

// One tensor per user input, on the device, with the strides of its type.
Result<std::vector<TensorRef>> make_inputs(const Graph& graph, TensorServices& services, const InputOptions& options);

// One tensor of that type: what make_inputs does per input, also for weights and recorded borders.
Result<TensorRef> make_tensor(const Type& type, const InputHint& hint, TensorServices& services, Device device,
                              uint64_t seed);

// A copy of `tensor` on its device and in its strides, each float of it smaller by up to 1/32 at random: values that hang together (a
// softmax's result, the sum that it was divided by) still do so by and large. Zeros, integers and bools are what they were; but a
// tensor of nothing but zeros, as an optimiser's state is at first, shows nothing of what is done with it: small numbers above zero.
Result<TensorRef> near_to(const TensorRef& tensor, TensorServices& services, uint64_t seed);
// In fp64, each float of it off by half a unit of its last place, up or down at random: what it may have been before it was rounded. Others
// as they are, the tensor itself.
Result<TensorRef> off_by_roundings(const TensorRef& tensor, TensorServices& services, uint64_t seed);

// A copy of `tensor`, which lies in host memory, whose last element is the first row that is not there. Null where the tensor may
// not be tried so or has no elements, and where its dtype cannot hold that number.
Result<TensorRef> with_refused_index(const TensorRef& tensor, const InputHint& hint, TensorServices& services);

}  // namespace keirin
