// SPDX-License-Identifier: Apache-2.0
//
// The columns of abi/ops.def that say what a row means, beside core/ir/rows.h, which holds those that printing and
// verifying need: which dtypes enter, what comes out, on which values the row is defined and how exact it is.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/dtype.h"
#include "core/ir/graph.h"
#include "core/ir/rows.h"

namespace keirin {

enum class RowDTypes : uint8_t { k_num, k_flt, k_int, k_bool, k_any };
// k_same: operand 0's dtype (the second's for `select`); k_attr: the attribute `dtype`; k_own: the row's shape rule
// says.
enum class RowResult : uint8_t { k_same, k_bool, k_attr, k_index, k_accum, k_own };
enum class RowDomain : uint8_t { k_all, k_pos, k_nonneg, k_nonzero, k_unit };

struct RowMeaning {
  RowDTypes dtypes = RowDTypes::k_any;
  RowResult result = RowResult::k_own;
  RowDomain domain = RowDomain::k_all;
  int tolerance_ulp = 0;  // 0: the exact class
};

// Of a row of the table; the default for opaque and unknown ids. Any thread.
const RowMeaning& row_meaning(OpCode code);

// Whether operands of this dtype may enter. Dtypes of class x never may.
bool accepts(RowDTypes dtypes, DType dtype);

// Whether the row reads the attribute.
bool reads_attr(const OpRow& row, AttrKey key);

inline bool is_kind(OpCode code, RowKind kind) {
  const OpRow* row = find_row(code);
  return row != nullptr && row->kind == kind;
}

}  // namespace keirin
