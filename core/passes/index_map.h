// SPDX-License-Identifier: Apache-2.0
//
// Values that are an affine function of their own coordinates: what positions, and masks made by comparing positions, are.
#pragma once

#include <optional>
#include <vector>

#include "core/ir/graph.h"

namespace keirin {

struct IndexMap {
  std::vector<int64_t> axes;  // factor of each coordinate
  int64_t offset = 0;
  // false: the element at c is axes.c + offset. true: the value is bool and true where axes.c + offset >= 0.
  bool is_condition = false;
};

std::optional<IndexMap> index_map_of(const Graph& graph, ValueId v);

// A bool value whose last two axes are row and column and that is true exactly where column <= row.
bool is_causal(const Graph& graph, ValueId v);

}  // namespace keirin
