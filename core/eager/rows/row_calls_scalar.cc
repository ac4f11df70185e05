// SPDX-License-Identifier: Apache-2.0
//
// SCALAR rows: operands have equal sizes already, so that each is one ATen call. Where ATen wants a number and the
// Graph has a tensor that is not known to be constant, the row's formula is written out.
#include "core/eager/at_tensor.h"
#include "core/eager/rows/row_calls.h"

namespace keirin {
namespace {

using at::Tensor;
using Unary = Tensor (*)(const Tensor&);
using Binary = Tensor (*)(const Tensor&, const Tensor&);

struct UnaryRow {
  OpCode code;
  Unary call;
};
struct BinaryRow {
  OpCode code;
  Binary call;
};

constexpr UnaryRow kUnary[] = {
    {OpCode::k_neg, at::neg},
    {OpCode::k_abs, at::abs},
    {OpCode::k_sign, at::sign},
    {OpCode::k_reciprocal, at::reciprocal},
    {OpCode::k_sqrt, at::sqrt},
    {OpCode::k_rsqrt, at::rsqrt},
    {OpCode::k_exp, at::exp},
    {OpCode::k_expm1, at::expm1},
    {OpCode::k_log, at::log},
    {OpCode::k_log1p, at::log1p},
    {OpCode::k_log2, at::log2},
    {OpCode::k_sin, at::sin},
    {OpCode::k_cos, at::cos},
    {OpCode::k_tanh, at::tanh},
    {OpCode::k_sigmoid, at::sigmoid},
    {OpCode::k_erf, at::erf},
    {OpCode::k_relu, at::relu},
    {OpCode::k_silu, at::silu},
    {OpCode::k_gelu, [](const Tensor& x) { return at::gelu(x); }},
    {OpCode::k_gelu_tanh, [](const Tensor& x) { return at::gelu(x, "tanh"); }},
    {OpCode::k_hardsigmoid, at::hardsigmoid},
    {OpCode::k_hardswish, at::hardswish},
    {OpCode::k_mish, at::mish},
    {OpCode::k_log_sigmoid, at::log_sigmoid},
    {OpCode::k_logical_not, at::logical_not},
    {OpCode::k_bit_not, at::bitwise_not},
    {OpCode::k_floor, at::floor},
    {OpCode::k_ceil, at::ceil},
    {OpCode::k_trunc, at::trunc},
    {OpCode::k_round, [](const Tensor& x) { return at::round(x); }},
    {OpCode::k_is_nan, at::isnan},
    {OpCode::k_exp2, at::exp2},
};

constexpr BinaryRow kBinary[] = {
    {OpCode::k_add, [](const Tensor& a, const Tensor& b) { return at::add(a, b); }},
    {OpCode::k_sub, [](const Tensor& a, const Tensor& b) { return at::sub(a, b); }},
    {OpCode::k_mul, [](const Tensor& a, const Tensor& b) { return at::mul(a, b); }},
    {OpCode::k_div, [](const Tensor& a, const Tensor& b) { return at::div(a, b); }},
    {OpCode::k_maximum, at::maximum},
    {OpCode::k_minimum, at::minimum},
    {OpCode::k_eq, [](const Tensor& a, const Tensor& b) { return at::eq(a, b); }},
    {OpCode::k_ne, [](const Tensor& a, const Tensor& b) { return at::ne(a, b); }},
    {OpCode::k_lt, [](const Tensor& a, const Tensor& b) { return at::lt(a, b); }},
    {OpCode::k_le, [](const Tensor& a, const Tensor& b) { return at::le(a, b); }},
    {OpCode::k_gt, [](const Tensor& a, const Tensor& b) { return at::gt(a, b); }},
    {OpCode::k_ge, [](const Tensor& a, const Tensor& b) { return at::ge(a, b); }},
    {OpCode::k_logical_and, at::logical_and},
    {OpCode::k_logical_or, at::logical_or},
    {OpCode::k_logical_xor, at::logical_xor},
    {OpCode::k_bit_and, [](const Tensor& a, const Tensor& b) { return at::bitwise_and(a, b); }},
    {OpCode::k_bit_or, [](const Tensor& a, const Tensor& b) { return at::bitwise_or(a, b); }},
    {OpCode::k_bit_xor, [](const Tensor& a, const Tensor& b) { return at::bitwise_xor(a, b); }},
    {OpCode::k_fmod, [](const Tensor& a, const Tensor& b) { return at::fmod(a, b); }},
};

RowRun make_pow(const RowSite& site) {
  if (const auto exponent = site.number(1)) {
    return [e = *exponent](RowIn in, RowOut out) { out[0] = at::pow(*in[0], e); };
  }
  return [](RowIn in, RowOut out) { out[0] = at::pow(*in[0], *in[1]); };
}

RowRun make_clamp(const RowSite& site) {
  const auto low = site.number(1), high = site.number(2);
  if (low && high) return [lo = *low, hi = *high](RowIn in, RowOut out) { out[0] = at::clamp(*in[0], lo, hi); };
  return [](RowIn in, RowOut out) { out[0] = at::clamp(*in[0], *in[1], *in[2]); };
}

RowRun make_leaky_relu(const RowSite& site) {
  if (const auto slope = site.number(1)) {
    return [s = *slope](RowIn in, RowOut out) { out[0] = at::leaky_relu(*in[0], s); };
  }
  return [](RowIn in, RowOut out) { out[0] = at::where(at::gt(*in[0], 0), *in[0], at::mul(*in[0], *in[1])); };
}

RowRun make_elu(const RowSite& site) {
  const auto alpha = site.number(1), scale = site.number(2), input_scale = site.number(3);
  if (alpha && scale && input_scale) {
    return [a = *alpha, s = *scale, i = *input_scale](RowIn in, RowOut out) { out[0] = at::elu(*in[0], a, s, i); };
  }
  return [](RowIn in, RowOut out) {
    const Tensor negative = at::mul(at::mul(at::expm1(at::mul(*in[0], *in[3])), *in[1]), *in[2]);
    out[0] = at::where(at::gt(*in[0], 0), at::mul(*in[0], *in[2]), negative);
  };
}

RowRun make_softplus(const RowSite& site) {
  const auto beta = site.number(1), threshold = site.number(2);
  if (beta && threshold) {
    return [b = *beta, t = *threshold](RowIn in, RowOut out) { out[0] = at::softplus(*in[0], b, t); };
  }
  return [](RowIn in, RowOut out) {
    const Tensor scaled = at::mul(*in[0], *in[1]);
    out[0] = at::where(at::gt(scaled, *in[2]), *in[0], at::div(at::log1p(at::exp(scaled)), *in[1]));
  };
}

}  // namespace

RowRun make_scalar_run(const RowSite& site) {
  for (const UnaryRow& row : kUnary) {
    if (row.code == site.op.code) return [call = row.call](RowIn in, RowOut out) { out[0] = call(*in[0]); };
  }
  for (const BinaryRow& row : kBinary) {
    if (row.code == site.op.code) return [call = row.call](RowIn in, RowOut out) { out[0] = call(*in[0], *in[1]); };
  }
  switch (site.op.code) {
    case OpCode::k_pow:
      return make_pow(site);
    case OpCode::k_clamp:
      return make_clamp(site);
    case OpCode::k_leaky_relu:
      return make_leaky_relu(site);
    case OpCode::k_elu:
      return make_elu(site);
    case OpCode::k_softplus:
      return make_softplus(site);
    case OpCode::k_select:
      return [](RowIn in, RowOut out) { out[0] = at::where(*in[0], *in[1], *in[2]); };
    case OpCode::k_cast:
      return [to = site.dtype()](RowIn in, RowOut out) { out[0] = in[0]->to(to); };
    default:
      return nullptr;
  }
}

}  // namespace keirin
