// SPDX-License-Identifier: Apache-2.0
//
// Types of an op's results from its operands' types and attributes: one shared rule per kind of row, one function per
// move and composite. Also the verifier's reference: an op whose results differ from what is inferred here is
// malformed.
#pragma once

#include <vector>

#include "core/base/status.h"
#include "core/ir/graph.h"

namespace keirin {

// `operands` may hold null for an absent one. Strides of results are what eager gives (TensorIterator's rule for
// pointwise, views keep their strides only when `op` is a move that eager does as a view; otherwise row-major).
Result<std::vector<Type>> infer_types(const Op& op, const std::vector<const Type*>& operands);

}  // namespace keirin
