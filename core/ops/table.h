// SPDX-License-Identifier: Apache-2.0
//
// The rows of abi/ops.def and the keys of abi/attrs.def as data that code can look up. It holds no rule of its own: what a row
// means is in abi/scalar.h and in the shape rules of infer.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/ir/graph.h"

namespace keirin {

enum class RowKind : uint8_t { kScalar, kReduce, kMove, kFactory, kComposite };
enum class RowDTypes : uint8_t { k_num, k_flt, k_int, k_bool, k_any };
// k_same: operand 0's dtype (the second's for `select`); k_attr: the attribute `dtype`; k_own: the composite's or move's rule.
enum class RowResult : uint8_t { k_same, k_bool, k_attr, k_index, k_accum, k_own };
enum class RowDomain : uint8_t { k_all, k_pos, k_nonneg, k_nonzero, k_unit };

struct Row {
  OpCode code;
  std::string_view name;
  RowKind kind;
  int min_operands;
  int max_operands;  // -1: any number
  int num_results;
  RowDTypes dtypes = RowDTypes::k_any;
  RowResult result = RowResult::k_own;
  RowDomain domain = RowDomain::k_all;
  int tolerance_ulp = 0;
  bool is_anchor = false;       // a composite that only a vendor's library or plain loops compute
  std::vector<AttrKey> attrs;   // the keys that the row reads
};

// Rows in ascending id, for the life of the process. Any thread.
const std::vector<Row>& all_rows();
const Row* find_row(OpCode code);            // null for opaque and unknown ids
const Row* find_row(std::string_view name);  // null if unknown
std::string_view op_name(OpCode code);       // "opaque" for kOpaque, "?" for an id that the table lacks

// Whether operands of this dtype may enter the row. Dtypes of class x never may.
bool accepts(RowDTypes dtypes, DType dtype);

std::string_view attr_name(AttrKey key);
std::optional<AttrKey> attr_from_name(std::string_view name);
char attr_kind(AttrKey key);                       // i d b I s, as in attrs.def; 0 if unknown
bool attr_holds(AttrKey key, const AttrValue& value);  // whether the value is of the key's kind

inline bool is_kind(OpCode code, RowKind kind) {
  const Row* row = find_row(code);
  return row != nullptr && row->kind == kind;
}

}  // namespace keirin
