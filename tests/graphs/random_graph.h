// SPDX-License-Identifier: Apache-2.0
//
// Draws well-typed graphs over the operator table: views and moves, pointwise in mixed dtypes, reductions, gathers and scatters,
// contractions and composites. What it does not draw: anything whose right answer depends on rounding. A comparison, a floor or
// an argmax looks only at values that every implementation computes to the bit.
#pragma once

#include <cstdint>

#include "core/ir/graph.h"

namespace keirin::graphs {

// kOther: the choices of the seed with other sizes, which mostly give the same structure.
enum class Sizes { kFirst, kOther };

// The same seed gives the same graph. Every op can be reached from an output. `finite`: with what has no defined answer for NaN
// and infinities: casts to integers, attention, convolutions.
Graph draw_graph(uint64_t seed, bool finite, Sizes which = Sizes::kFirst);

}  // namespace keirin::graphs
