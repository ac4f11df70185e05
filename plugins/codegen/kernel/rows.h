// SPDX-License-Identifier: Apache-2.0
//
// From a row of ops.def to DAG nodes: the scalar formula of the row, instantiated with Expr, and what storage dtypes mean for
// computing. It knows no shapes and no loops.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "plugins/codegen/kernel/expr.h"
#include "plugins/codegen/kernel/loops.h"
#include "plugins/kit/tables.h"

namespace keirin::codegen {

using enum kit::Op;
using enum kit::DType;
using enum kit::AttrKey;

enum class OpKind : uint8_t { kScalar, kReduce, kMove, kFactory, kBodyComposite, kAnchorComposite, kUnknown };
OpKind op_kind(uint32_t op);
std::string_view op_name(uint32_t op);

int dtype_bytes(uint8_t dtype);
bool is_float(uint8_t dtype);
bool is_integer(uint8_t dtype);
// Whether generated code can compute in it at all (complex, f8 and wide unsigned are carried only).
bool is_computable(uint8_t dtype);
// f32 for f16, bf16 and f32; f64; i64 for integers; bool.
Kind compute_kind(uint8_t dtype);

// Appends the formula of a SCALAR row (all but cast) to `dag`. Operands have the row's compute kinds.
int32_t build_scalar(Dag& dag, uint32_t op, std::span<const int32_t> operands);
// A value of compute kind converted from dtype `from` to dtype `to`, as ATen's cast does.
int32_t build_cast(Dag& dag, int32_t value, uint8_t from, uint8_t to);
// Rounds to (f16, bf16) or wraps to (integers) the dtype; the value itself where that changes nothing.
int32_t build_storage_round(Dag& dag, int32_t value, uint8_t dtype);
int32_t build_literal(Dag& dag, Kind kind, double real, int64_t integer);
// What a sum is divided by is how many were summed, which changes with the sizes: where the literal is a whole number it is converted from
// an integer, which can be an argument of a kernel (is_argument), so that means of all sizes share one. Else the divisor itself.
int32_t build_count(Dag& dag, int32_t divisor);
// The number that a literal or a count is; nothing where the node is neither.
std::optional<double> number_of(const Dag& dag, int32_t node);

Monoid monoid_of(uint32_t reduce_op);

}  // namespace keirin::codegen
