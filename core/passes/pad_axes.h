// SPDX-License-Identifier: Apache-2.0
//
// Where the elements of a value at one size lie in the same value at a larger one. Each axis is a product of factors, outermost first; an
// element keeps its coordinate in every factor, whose extent alone grew. What has a coordinate beyond the smaller extent is padded.
// Private to core/passes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/ir/graph.h"

namespace keirin {

struct PadFactor {
  int64_t small = 1, large = 1;
  bool uniform = false;  // the value does not vary along it, so that any factors of the same extents describe it too
  bool grows() const { return small != large; }
  bool operator==(const PadFactor&) const = default;
};

// No factor of extent 1, and no two neighbours that do not grow. Empty: an axis of size 1.
using PadAxis = std::vector<PadFactor>;
using PadAxes = std::vector<PadAxis>;

// Of sizes that a value has in both graphs; an axis that grows is one factor.
PadAxis axis_of(int64_t small, int64_t large, bool uniform = false);
PadAxes axes_of(const Dims& small, const Dims& large, bool uniform = false);

bool grows(const PadAxis& axis);
bool grows(const PadAxes& axes);
// Grows, and is one factor.
bool grows_alone(const PadAxis& axis);
// Grows, and its padded elements are the last ones.
bool grows_at_end(const PadAxis& axis);

// What describes both of two operands whose elements meet one by one. Nullopt: their elements do not meet alike at both sizes.
std::optional<PadAxis> unite(const PadAxis& a, const PadAxis& b);
std::optional<PadAxes> unite(const PadAxes& a, const PadAxes& b);

// The same elements in the same order, row-major, as axes of these sizes. Nullopt: an axis would begin or end within what grew.
std::optional<PadAxes> regroup(const PadAxes& axes, const Dims& small, const Dims& large);

}  // namespace keirin
