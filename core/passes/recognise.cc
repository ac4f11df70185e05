// SPDX-License-Identifier: Apache-2.0
//
// Pass 6: patterns that people write out by hand become rows. Under `strict` only rules that compute the very same bits run.
#include "core/passes/recognise.h"

#include "core/passes/pass.h"

namespace keirin {
namespace {

struct Row {
  OpCode root;
  recognise::Rule rule;
  bool exact;
};

constexpr Row kRules[] = {
    {OpCode::k_scatter, recognise::index_reduce, true},
    {OpCode::k_matmul, recognise::linear, true},
    {OpCode::k_mul, recognise::silu, false},
    {OpCode::k_mul, recognise::gelu, false},
    {OpCode::k_mul, recognise::rms_norm, false},
    {OpCode::k_mul, recognise::rms_norm_weight, false},
    {OpCode::k_cast, recognise::rms_norm_cast, false},
    {OpCode::k_div, recognise::softmax, false},
};

}  // namespace

Status passes::recognise(Graph& graph, PassContext& context) {
  return rewrite(graph, [&](Rewriter& r, OpId id) -> Result<bool> {
    const Op& op = r.old().ops[id];
    ValueIds operands = r.operands(op);
    for (const Row& row : kRules) {
      if (row.root != op.code || (context.numerics == Numerics::kStrict && !row.exact)) continue;
      KRN_TRY_LET(ValueId v, row.rule(r, op, operands));
      if (v == kNone || !r.can_replace(op.results[0], v) || r.graph().type(v).dtype != r.old().type(op.results[0]).dtype) continue;
      r.replace(op.results[0], v);
      return true;
    }
    return false;
  });
}

}  // namespace keirin
