// SPDX-License-Identifier: Apache-2.0
//
// Bodies of mean and var. Two passes: the distances are taken from the exact mean.
#include <algorithm>

#include "core/ops/decompose.h"

#include "abi/planted.h"

namespace keirin::bodies {
namespace {

double count(const Dims& sizes, const Dims& dims) {
  double n = 1;
  for (int64_t d : dims) n *= static_cast<double>(sizes[d]);
  return n;
}

}  // namespace

ValueId mean_of(Lowering& w, ValueId x, const Dims& dims, bool keepdim) {
  return w.with_number(OpCode::k_div, w.reduce(OpCode::k_sum, x, dims, keepdim), count(w.sizes(x), dims));
}

ValueId variance_of(Lowering& w, ValueId x, const Dims& dims, double correction, bool keepdim) {
  Dims sizes = w.sizes(x);
  ValueId distance = w.binary(OpCode::k_sub, x, w.expand(mean_of(w, x, dims), sizes));
  ValueId sum = w.reduce(OpCode::k_sum, w.binary(OpCode::k_mul, distance, distance), dims, keepdim);
  return w.with_number(OpCode::k_div, sum, std::max(0.0, count(sizes, dims) - (KRN_PLANTED(var_uncorrected) ? 0 : correction)));
}

ValueId mean(Lowering& w, const Op& op, const Values& operands) {
  DType out = w.dtype_of(operands[0]);
  ValueId x = w.cast(operands[0], compute_dtype(out));
  return w.cast(mean_of(w, x, op.ints(AttrKey::k_dims), op.b(AttrKey::k_keepdim)), out);
}

ValueId var(Lowering& w, const Op& op, const Values& operands) {
  DType out = w.dtype_of(operands[0]);
  ValueId x = w.cast(operands[0], compute_dtype(out));
  return w.cast(variance_of(w, x, op.ints(AttrKey::k_dims), op.d(AttrKey::k_correction), op.b(AttrKey::k_keepdim)),
                out);
}

}  // namespace keirin::bodies
