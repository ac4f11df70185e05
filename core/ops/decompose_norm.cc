// SPDX-License-Identifier: Apache-2.0
//
// Bodies of the norms. Statistics and scaling run in the compute dtype and the result is rounded once.
#include "core/ops/decompose.h"

namespace keirin::bodies {
namespace {

ValueId operand(const Values& operands, size_t i) { return i < operands.size() ? operands[i] : kNone; }

// A parameter that has one element for each index of `axes`, spread over x.
ValueId spread(Lowering& w, ValueId parameter, ValueId x, int64_t first_axis) {
  Dims sizes(w.rank(x), 1), own = w.sizes(parameter);
  for (size_t i = 0; i < own.size(); ++i) sizes[first_axis + i] = own[i];
  return w.expand(w.reshape(w.cast(parameter, w.dtype_of(x)), sizes), w.sizes(x));
}

ValueId scaled(Lowering& w, ValueId x, ValueId weight, ValueId bias, int64_t first_axis) {
  if (weight != kNone) x = w.binary(OpCode::k_mul, x, spread(w, weight, x, first_axis));
  if (bias != kNone) x = w.binary(OpCode::k_add, x, spread(w, bias, x, first_axis));
  return x;
}

ValueId inverse_root(Lowering& w, ValueId v, double eps) {
  return w.row(OpCode::k_rsqrt, {w.with_number(OpCode::k_add, v, eps)});
}

// (x - mean) / sqrt(var + eps) over `dims`.
ValueId standardised(Lowering& w, ValueId x, const Dims& dims, double eps) {
  Dims sizes = w.sizes(x);
  ValueId distance = w.binary(OpCode::k_sub, x, w.expand(mean_of(w, x, dims), sizes));
  ValueId variance = mean_of(w, w.binary(OpCode::k_mul, distance, distance), dims);
  return w.binary(OpCode::k_mul, distance, w.expand(inverse_root(w, variance, eps), sizes));
}

Dims trailing(int64_t rank, int64_t n) {
  Dims dims;
  for (int64_t i = rank - n; i < rank; ++i) dims.push_back(i);
  return dims;
}

}  // namespace

ValueId batch_norm(Lowering& w, const Op& op, const Values& operands) {
  DType out = w.dtype_of(operands[0]);
  ValueId x = w.cast(operands[0], compute_dtype(out));
  ValueId scale = inverse_root(w, w.cast(operands[4], w.dtype_of(x)), op.d(AttrKey::k_eps));
  if (operands[1] != kNone) scale = w.binary(OpCode::k_mul, scale, w.cast(operands[1], w.dtype_of(x)));
  ValueId distance = w.binary(OpCode::k_sub, x, spread(w, operands[3], x, 1));
  return w.cast(scaled(w, distance, scale, operands[2], 1), out);
}

ValueId batch_norm_of_batch(Lowering& w, ValueId x, ValueId weight, ValueId bias, double eps) {
  const DType out = w.dtype_of(x);
  Dims dims = trailing(w.rank(x), w.rank(x) - 1);
  dims[0] = 0;  // all axes but that of the channels
  x = standardised(w, w.cast(x, compute_dtype(out)), dims, eps);
  return w.cast(scaled(w, x, weight, bias, 1), out);
}

ValueId layer_norm(Lowering& w, const Op& op, const Values& operands) {
  DType out = w.dtype_of(operands[0]);
  ValueId x = w.cast(operands[0], compute_dtype(out));
  Dims dims = trailing(w.rank(x), op.i(AttrKey::k_rank));
  x = standardised(w, x, dims, op.d(AttrKey::k_eps));
  return w.cast(scaled(w, x, operand(operands, 1), operand(operands, 2), dims[0]), out);
}

ValueId group_norm(Lowering& w, const Op& op, const Values& operands) {
  const Type type = w.type(operands[0]);
  int64_t groups = op.i(AttrKey::k_groups), batch = type.sizes[0];
  int64_t each = batch > 0 ? type.num_elements() / (batch * groups) : 0;
  ValueId x = w.reshape(w.cast(operands[0], compute_dtype(type.dtype)), {batch, groups, each});
  x = w.reshape(standardised(w, x, {2}, op.d(AttrKey::k_eps)), type.sizes);
  return w.cast(scaled(w, x, operand(operands, 1), operand(operands, 2), 1), type.dtype);
}

// A channel's mean and variance are those of a column, and a group's are made of them: the mean of the variances and the variance of the
// means. What is left is a factor and an offset for each channel, as eager's kernels on a GPU have it.
ValueId group_norm_by_channel(Lowering& w, const Op& op, const Values& operands) {
  const Type type = w.type(operands[0]);
  if (type.num_elements() == 0) return group_norm(w, op, operands);
  const int64_t groups = op.i(AttrKey::k_groups), batch = type.sizes[0], channels = type.sizes[1];
  const Dims grouped = {batch, groups, channels / groups}, whole = type.sizes, pixels = trailing(type.rank(), type.rank() - 2);
  Dims channel(type.rank(), 1);
  channel[0] = batch, channel[1] = channels;
  const auto of_channels = [&](ValueId parameter) {
    return w.expand(w.reshape(w.cast(parameter, compute_dtype(type.dtype)), {1, groups, channels / groups}), grouped);
  };
  const ValueId x = w.cast(operands[0], compute_dtype(type.dtype)), means = mean_of(w, x, pixels);
  const ValueId of_each = w.reshape(means, grouped), mean = mean_of(w, of_each, {2});
  const ValueId variances = w.reshape(variance_of(w, x, pixels, 0), grouped);
  const ValueId variance = w.binary(OpCode::k_add, mean_of(w, variances, {2}), variance_of(w, of_each, {2}, 0));
  ValueId factor = w.expand(inverse_root(w, variance, op.d(AttrKey::k_eps)), grouped);
  if (operand(operands, 1) != kNone) factor = w.binary(OpCode::k_mul, factor, of_channels(operands[1]));
  const ValueId moved = w.binary(OpCode::k_mul, w.expand(mean, grouped), factor);
  const ValueId offset = operand(operands, 2) == kNone ? w.row(OpCode::k_neg, {moved})
                                                       : w.binary(OpCode::k_sub, of_channels(operands[2]), moved);
  const auto beside = [&](ValueId value) { return w.expand(w.reshape(value, channel), whole); };
  return w.cast(w.binary(OpCode::k_add, w.binary(OpCode::k_mul, x, beside(factor)), beside(offset)), type.dtype);
}

ValueId rms_norm(Lowering& w, const Op& op, const Values& operands) {
  DType out = w.dtype_of(operands[0]);
  ValueId x = w.cast(operands[0], compute_dtype(out));
  Dims dims = trailing(w.rank(x), op.i(AttrKey::k_rank));
  ValueId scale = inverse_root(w, mean_of(w, w.binary(OpCode::k_mul, x, x), dims), op.d(AttrKey::k_eps));
  x = w.binary(OpCode::k_mul, x, w.expand(scale, w.sizes(x)));
  return w.cast(scaled(w, x, operand(operands, 1), kNone, dims[0]), out);
}

}  // namespace keirin::bodies
