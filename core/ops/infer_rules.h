// SPDX-License-Identifier: Apache-2.0
//
// The shape rules behind infer_types, by kind of row. Private to core/ops.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/ir/graph.h"
#include "core/ops/table.h"

namespace keirin::rules {

using Operands = std::vector<const Type*>;  // null where an optional operand is absent
using Types = std::vector<Type>;

Status malformed(const Op& op, const std::string& what);
std::string text(const Dims& dims);  // "[2, 3]"

// Sizes after reducing `dims` (ascending, unique, in range) of `sizes`.
Result<Dims> reduced_sizes(const Op& op, const Dims& sizes);

Result<Types> move(const Op& op, const OpRow& row, const Operands& operands);
Result<Types> composite(const Op& op, const OpRow& row, const Operands& operands);

inline Type row_major(DType dtype, Dims sizes) {
  Dims strides = contiguous_strides(sizes);
  return Type{dtype, std::move(sizes), std::move(strides)};
}

#define KRN_RULE(condition, message)                                  \
  do {                                                                \
    if (!(condition)) return ::keirin::rules::malformed(op, message); \
  } while (false)

}  // namespace keirin::rules
