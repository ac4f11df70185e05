// SPDX-License-Identifier: Apache-2.0
//
// Index patterns and contractions: scatter by an expanded 1-d index is index_reduce; a matmul with a transposed matrix is a
// linear, whose weight vendors take as it is stored.
#include "core/passes/facts.h"
#include "core/passes/recognise.h"

namespace keirin::recognise {

// PyG and torch_scatter expand edge indices to [E, F] first: then each row goes to one place.
Result<ValueId> index_reduce(Rewriter& r, const Op& op, const ValueIds& operands) {
  const Graph& g = r.graph();
  const size_t dim = static_cast<size_t>(op.i(AttrKey::k_dim));
  const Dims sizes = g.type(operands[1]).sizes;
  if (g.type(operands[2]).sizes != sizes) return kNone;
  for (size_t i = 0; i < sizes.size(); ++i)
    if (i != dim && sizes[i] != g.type(operands[0]).sizes[i]) return kNone;
  ValueId index = operands[1];
  if (const Op* expand = made_by(g, index, OpCode::k_expand)) index = expand->operands[0];
  for (size_t i = 0; i < sizes.size(); ++i)
    if (i != dim && g.type(index).sizes[i] != 1) return kNone;
  if (g.type(index).sizes[dim] != sizes[dim] || sizes.size() < 2) return kNone;
  if (const Op* reshape = made_by(g, index, OpCode::k_reshape); reshape && g.type(reshape->operands[0]).rank() == 1)
    index = reshape->operands[0];
  KRN_TRY_LET(index, r.build().reshape(index, {sizes[dim]}));
  return try_emit(r, OpCode::k_index_reduce, {operands[0], index, operands[2]}, op.attrs);
}

Result<ValueId> linear(Rewriter& r, const Op& op, const ValueIds& operands) {
  const Graph& g = r.graph();
  const Op* permute = made_by(g, operands[1], OpCode::k_permute);
  if (!permute || g.type(operands[0]).rank() != 2 || permute->ints(AttrKey::k_dims) != Dims{1, 0}) return kNone;
  ValueId weight = permute->operands[0];
  if (g.values[weight].kind != ValueKind::kConstant) return kNone;
  return try_emit(r, OpCode::k_linear, {operands[0], weight, kNone}, op.attrs);
}

}  // namespace keirin::recognise
