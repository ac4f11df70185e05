// SPDX-License-Identifier: Apache-2.0
//
// Which memory order eager gives a result. Layout is not meaning, so a wrong answer here costs a copy at a region's
// border and never a wrong number; what it protects is that a graph output has the strides that user code may `view`.
#pragma once

#include <optional>
#include <vector>

#include "core/ir/graph.h"

namespace keirin {

// TensorIterator's choice for a result of `sizes` computed element-wise from operands of the same sizes (stride 0 on
// axes that were broadcast). Operands must not be null.
Dims pointwise_strides(const Dims& sizes, const std::vector<const Type*>& operands);

// Strides of a view of `type` with other sizes, or nullopt if a copy is needed. Element counts are equal.
std::optional<Dims> view_strides(const Type& type, const Dims& sizes);

// What suggest_memory_format answers for a rank 4 or 5 tensor; false for other ranks.
bool suggests_channels_last(const Type& type);

// Row-major, or channels-last where `like` suggests it and the rank allows it: convolutions, pools, norms over
// channels.
Dims strides_like(const Type& like, const Dims& sizes);

// Strides of a copy that keeps the order of memory (clone, empty_like).
Dims preserved_strides(const Type& type);

}  // namespace keirin
