// SPDX-License-Identifier: Apache-2.0
//
// Small questions about values that several passes ask.
#pragma once

#include <optional>
#include <vector>

#include "core/ir/graph.h"

namespace keirin {

// The op that made `v` if it has that code, else null.
const Op* made_by(const Graph& graph, ValueId v, OpCode code);

// The number that every element of `v` is, as seen through views and exact casts of a `full`. For integers within 2^53.
std::optional<double> splat_of(const Graph& graph, ValueId v);

// `v` with expands, and reshapes that only add or drop axes of size 1, taken off.
ValueId behind_broadcast(const Graph& graph, ValueId v);

// Every value of `from` is a value of `to`.
bool is_lossless(DType from, DType to);

// Rounds as the dtype stores it; what an element of that dtype becomes when x is written to it. Integers: x itself.
double round_to(DType dtype, double x);

// The ranges of all values, as the pass `infer` finds them, where the user's inputs have these, by position. Constants are not looked at.
void find_ranges(Graph& graph, const std::vector<std::optional<Range>>& of_inputs);

}  // namespace keirin
