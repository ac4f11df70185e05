// SPDX-License-Identifier: Apache-2.0
//
// The tables abi/ops.def and abi/attrs.def as data: what printer, parser, verifier and writer ask about a row. Meaning and
// shape rules are in core/ops; nothing here is written twice, every field is a column.
#pragma once

#include <string_view>

#include "core/ir/graph.h"

namespace keirin {

enum class RowKind : uint8_t { kOpaque, kScalar, kReduce, kMove, kFactory, kComposite };

struct OpRow {
  OpCode code;
  std::string_view name;
  RowKind kind;
  int arity_min;            // operands listed, present or absent
  int arity_max;            // -1: any number
  int num_results;          // -1: any number (opaque)
  std::string_view dtypes;  // scalar, reduce: num flt int bool any; else empty
  std::string_view result;  // scalar: same bool attr; reduce: same bool index accum; composite: body anchor
  std::string_view attrs;   // allowed keys, separated by spaces
  bool is_anchor() const { return kind == RowKind::kComposite && result == "anchor"; }
};

// Null for a code or name that is not in the table. Valid for the life of the process.
const OpRow* find_row(OpCode code);
const OpRow* find_row(std::string_view name);
std::string_view op_name(OpCode code);  // "?" if unknown

// Moves that only look at memory in another way (a reshape may still have to copy).
inline bool is_view(OpCode code) {
  return code == OpCode::k_expand || code == OpCode::k_reshape || code == OpCode::k_permute || code == OpCode::k_slice;
}

// Null name for a key that is not in the table. kind: i d b I s, as in attrs.def.
std::string_view attr_name(AttrKey key);
char attr_kind(AttrKey key);
std::optional<AttrKey> attr_from_name(std::string_view name);
// Whether the value holds what the key's kind says.
bool attr_has_kind(const Attr& attr);

}  // namespace keirin
