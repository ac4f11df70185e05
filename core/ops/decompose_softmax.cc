// SPDX-License-Identifier: Apache-2.0
//
// Bodies of softmax and log_softmax, shifted by the row's maximum as in eager: a row of -inf gives NaN there too.
#include "core/ops/decompose.h"

#include "abi/planted.h"

namespace keirin::bodies {
namespace {

// x minus the maximum along the axis, in the compute dtype.
ValueId shifted(Lowering& w, ValueId x, int64_t dim) {
  Dims sizes = w.sizes(x);
  x = w.cast(x, compute_dtype(w.dtype_of(x)));
  return w.binary(OpCode::k_sub, x, w.expand(w.reduce(OpCode::k_amax, x, {dim}, true), sizes));
}

}  // namespace

ValueId softmax(Lowering& w, const Op& op, const Values& operands) {
  const Type type = w.type(operands[0]);
  int64_t dim = op.i(AttrKey::k_dim);
  if (type.sizes[dim] == 0) return w.full(Lowering::number(0.0), type.dtype, type.sizes);
  ValueId e = w.row(OpCode::k_exp, {shifted(w, operands[0], dim)});
  const int64_t summed = KRN_PLANTED(softmax_axis) ? type.rank() - 1 : dim;
  ValueId sum = w.expand(w.reduce(OpCode::k_sum, e, {summed}, true), type.sizes);
  return w.cast(w.binary(OpCode::k_div, e, sum), type.dtype);
}

ValueId log_softmax(Lowering& w, const Op& op, const Values& operands) {
  const Type type = w.type(operands[0]);
  int64_t dim = op.i(AttrKey::k_dim);
  if (type.sizes[dim] == 0) return w.full(Lowering::number(0.0), type.dtype, type.sizes);
  ValueId x = shifted(w, operands[0], dim);
  ValueId sum = w.reduce(OpCode::k_sum, w.row(OpCode::k_exp, {x}), {dim}, true);
  ValueId log = w.expand(w.row(OpCode::k_log, {sum}), type.sizes);
  return w.cast(w.binary(OpCode::k_sub, x, log), type.dtype);
}

}  // namespace keirin::bodies
