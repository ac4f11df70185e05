// SPDX-License-Identifier: Apache-2.0
//
// Pass 11: sets every value's `observed` bit, the licence of fused code to skip a rounding to bf16 or f16. Values whose dtype
// is its own compute dtype are always observed: nothing is rounded there. In doubt, set.
#include "abi/planted.h"
#include "core/ir/rows.h"
#include "core/passes/pass.h"

namespace keirin {
namespace {

// Ops whose result jumps where an operand moves by one rounding: they must see what eager sees.
bool is_discontinuous(const Graph& graph, const Op& op) {
  switch (op.code) {
    case OpCode::k_eq: case OpCode::k_ne: case OpCode::k_lt: case OpCode::k_le: case OpCode::k_gt: case OpCode::k_ge:
    case OpCode::k_floor: case OpCode::k_ceil: case OpCode::k_trunc: case OpCode::k_round: case OpCode::k_sign:
    case OpCode::k_fmod: case OpCode::k_argmax: case OpCode::k_argmin: case OpCode::k_is_nan: return true;
    case OpCode::k_cast: return !is_float(graph.type(op.results[0]).dtype);
    default: return false;
  }
}

bool reads_observed(const Graph& graph, const Op& op) {
  return op.code == OpCode::kOpaque || find_row(op.code)->is_anchor() || is_discontinuous(graph, op);
}

// A cast from another float is there for the rounding: x.bfloat16().float() - x is what the rounding took away.
bool rounds_on_purpose(const Graph& graph, const Op& op) {
  return op.code == OpCode::k_cast && is_float(graph.type(op.operands[0]).dtype);
}

}  // namespace

Status passes::mark_rounding(Graph& graph, PassContext& context) {
  for (Value& value : graph.values)
    value.observed = context.numerics == Numerics::kStrict || value.kind != ValueKind::kResult ||
                     compute_dtype(value.type.dtype) == value.type.dtype;
  for (const Output& output : graph.outputs) graph.values[output.value].observed = true;
  for (const Op& op : graph.ops) {
    if (op.code == OpCode::kOpaque)  // an eager call writes its results to memory, in every mode
      for (ValueId v : op.results) graph.values[v].observed = true;
    if (context.numerics != Numerics::kFast && rounds_on_purpose(graph, op)) graph.values[op.results[0]].observed = true;
    bool read = KRN_PLANTED(rounding_unseen)          ? false
                : context.numerics == Numerics::kFast ? op.code == OpCode::kOpaque
                                                      : reads_observed(graph, op);
    if (!read) continue;
    for (ValueId v : op.operands)
      if (v != kNone) graph.values[v].observed = true;
  }
  return {};
}

}  // namespace keirin
