// SPDX-License-Identifier: Apache-2.0
//
// The levels behind a cut. Private to core/partition.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ir/graph.h"

namespace keirin {

inline constexpr uint32_t kEagerClass = kNone;
inline constexpr uint32_t kFloatingClass = kNone - 1;  // takes no part

// By op: for each edge producer -> consumer, level(consumer) >= level(producer), and more where the classes differ. Effects
// are edges, too. Ops of a class are on as few levels as one sweep down and one sweep up find.
std::vector<uint32_t> assign_levels(const Graph& graph, const std::vector<uint32_t>& classes);

}  // namespace keirin
