// SPDX-License-Identifier: Apache-2.0
//
// Makes a failing graph small: fewer outputs, fewer ops, smaller axes, as long as it still fails. It knows no plugin.
#pragma once

#include <functional>

#include "core/ir/graph.h"

namespace keirin {

using Fails = std::function<bool(const Graph&)>;

Graph shrink(Graph graph, const Fails& fails, int most_tries = 400);

}  // namespace keirin
