// SPDX-License-Identifier: Apache-2.0
//
// Whether a call may be answered by a plan for larger sizes: the inputs padded at the ends of their axes, the outputs cut back. Two graphs
// of one program, at the call's sizes and at larger ones, are walked side by side, and each value of the first is looked for in the second:
// every element has to be computed from the same elements by the same numbers, whatever stands in the padded ones, NaN included, or be NaN
// itself. A row of the operator table is safe by what its kind means (elements one by one, a reduction of axes); composites with a body by
// their bodies; moves and anchors have a rule each. What has none is not safe.
//
// The invariant: what is not proved is refused. What is proved for two sizes holds for others as far as the program computes numbers and
// sizes alike there; who asks tries several pairs (core/api/buckets.h).
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/ir/graph.h"

namespace keirin {

// What stands in the padded elements of an input.
struct PadFill {
  double value = 0;
  // It is the smaller graph's extent of an axis, so that as an index into that axis it is the first padded element at any size.
  bool is_extent = false;
};

struct PadProof {
  // By output of the user's and axis: whether it is longer in the larger graph, and has to be cut.
  std::vector<std::vector<bool>> cut;
  // By output: elements that are kept are right, or NaN, because padding that has no share in them holds no number and 0 times that is
  // NaN. Whoever pads looks for it.
  std::vector<bool> or_nan;
  // What was taken for granted about elements of an input: that they are from 0 to below this extent of the smaller graph, as indices into
  // an axis that was padded have to be. Whoever pads looks.
  struct Bound {
    uint32_t input = 0;
    int64_t extent = 0;
    bool operator==(const Bound&) const = default;
  };
  std::vector<Bound> bounds;
};

// Inputs of `small` are the first elements along each axis of those of `large`; fills[i] stands for the rest of input i. Both as imported,
// before passes. `unsupported` names the operator and the output that forbid it. Any thread.
Result<PadProof> prove_pad_safe(const Graph& small, const Graph& large, const std::vector<PadFill>& fills);

}  // namespace keirin
