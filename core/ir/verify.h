// SPDX-License-Identifier: Apache-2.0
//
// Is this Graph well-formed? Everything but the shape rules of the rows, which stand to the right (core/passes/check.h).
// A graph that verifies can be walked, printed and written without a bounds check.
#pragma once

#include "core/base/status.h"
#include "core/ir/graph.h"

namespace keirin {

// The first defect found, as `internal`: a graph breaks only through a bug in what wrote it.
Status verify(const Graph& graph);

}  // namespace keirin
