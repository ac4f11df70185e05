// SPDX-License-Identifier: Apache-2.0
//
// RMS norm as language models write it, in three steps that meet: x * rsqrt(mean(x^2) + eps), the casts around it, the weight.
// And softmax by its definition.
#include "core/passes/facts.h"
#include "core/passes/recognise.h"

namespace keirin::recognise {
namespace {

// The operand of an expand that grows the last axis alone; kNone if v is not such an expand.
ValueId before_row_expand(const Graph& g, ValueId v) {
  const Op* expand = made_by(g, v, OpCode::k_expand);
  if (!expand) return kNone;
  Dims want = g.type(v).sizes;
  if (want.empty()) return kNone;
  want.back() = 1;
  return g.type(expand->operands[0]).sizes == want ? expand->operands[0] : kNone;
}

bool is_square_of(const Graph& g, ValueId v, ValueId x) {
  if (const Op* mul = made_by(g, v, OpCode::k_mul)) return mul->operands[0] == x && mul->operands[1] == x;
  const Op* pow = made_by(g, v, OpCode::k_pow);
  return pow && pow->operands[0] == x && splat_of(g, pow->operands[1]) == 2.0;
}

// eps of rsqrt(mean(x * x, last axis, keepdim) + eps), or nullopt.
std::optional<double> rms_eps(const Graph& g, ValueId v, ValueId x) {
  const Op* rsqrt = made_by(g, v, OpCode::k_rsqrt);
  const Op* add = rsqrt ? made_by(g, rsqrt->operands[0], OpCode::k_add) : nullptr;
  if (!add) return std::nullopt;
  for (size_t k = 0; k < 2; ++k) {
    auto eps = splat_of(g, add->operands[k]);
    const Op* mean = made_by(g, add->operands[1 - k], OpCode::k_mean);
    if (eps && mean && mean->b(AttrKey::k_keepdim) && mean->ints(AttrKey::k_dims) == Dims{g.type(x).rank() - 1} &&
        is_square_of(g, mean->operands[0], x))
      return eps;
  }
  return std::nullopt;
}

}  // namespace

Result<ValueId> rms_norm(Rewriter& r, const Op&, const ValueIds& operands) {
  const Graph& g = r.graph();
  for (size_t k = 0; k < 2; ++k) {
    ValueId x = operands[k], scale = before_row_expand(g, operands[1 - k]);
    if (scale == kNone) continue;
    if (auto eps = rms_eps(g, scale, x))
      return try_emit(r, OpCode::k_rms_norm, {x, kNone}, {{AttrKey::k_rank, int64_t{1}}, {AttrKey::k_eps, *eps}});
  }
  return kNone;
}

// cast(rms_norm(cast(x))): the row computes in f32 by itself.
Result<ValueId> rms_norm_cast(Rewriter& r, const Op& op, const ValueIds& operands) {
  const Graph& g = r.graph();
  const Op* norm = made_by(g, operands[0], OpCode::k_rms_norm);
  if (!norm || (norm->operands.size() > 1 && norm->operands[1] != kNone)) return kNone;
  const Op* up = made_by(g, norm->operands[0], OpCode::k_cast);
  DType dtype = r.old().type(op.results[0]).dtype;
  if (!up || g.type(up->operands[0]).dtype != dtype || g.type(operands[0]).dtype != compute_dtype(dtype)) return kNone;
  return try_emit(r, OpCode::k_rms_norm, {up->operands[0], kNone}, norm->attrs);
}

Result<ValueId> rms_norm_weight(Rewriter& r, const Op&, const ValueIds& operands) {
  const Graph& g = r.graph();
  for (size_t k = 0; k < 2; ++k) {
    const Op* norm = made_by(g, operands[k], OpCode::k_rms_norm);
    if (!norm || (norm->operands.size() > 1 && norm->operands[1] != kNone)) continue;
    ValueId weight = behind_broadcast(g, operands[1 - k]);
    const Op* expand = made_by(g, operands[1 - k], OpCode::k_expand);
    Dims row(g.type(operands[k]).sizes.size(), 1);
    row.back() = g.type(operands[k]).sizes.back();
    ValueId direct = expand ? expand->operands[0] : operands[1 - k];
    if (g.type(direct).sizes != row || g.type(weight).sizes != Dims{row.back()}) continue;
    return try_emit(r, OpCode::k_rms_norm, {norm->operands[0], weight}, norm->attrs);
  }
  return kNone;
}

// exp(x - max(x)) / sum(exp(x - max(x))) along one axis.
Result<ValueId> softmax(Rewriter& r, const Op&, const ValueIds& operands) {
  const Graph& g = r.graph();
  const Op* exp = made_by(g, operands[0], OpCode::k_exp);
  const Op* spread = made_by(g, operands[1], OpCode::k_expand);
  const Op* sum = spread ? made_by(g, spread->operands[0], OpCode::k_sum) : nullptr;
  const Op* sub = exp ? made_by(g, exp->operands[0], OpCode::k_sub) : nullptr;
  if (!sum || !sub || sum->operands[0] != operands[0] || !sum->b(AttrKey::k_keepdim)) return kNone;
  const Op* shift = made_by(g, sub->operands[1], OpCode::k_expand);
  const Op* max = shift ? made_by(g, shift->operands[0], OpCode::k_amax) : nullptr;
  const Dims dims = sum->ints(AttrKey::k_dims);
  if (!max || max->operands[0] != sub->operands[0] || !max->b(AttrKey::k_keepdim) || max->ints(AttrKey::k_dims) != dims || dims.size() != 1)
    return kNone;
  return try_emit(r, OpCode::k_softmax, {sub->operands[0]}, {{AttrKey::k_dim, dims[0]}});
}

}  // namespace keirin::recognise
