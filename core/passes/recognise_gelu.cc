// SPDX-License-Identifier: Apache-2.0
//
// Activations written out: x * sigmoid(x), and GELU by erf or by tanh in any order of its factors.
#include <cmath>

#include "core/passes/facts.h"
#include "core/passes/recognise.h"

namespace keirin::recognise {
namespace {

// A product as one number and the other factors; x^n counts n times.
struct Product {
  double number = 1;
  std::vector<ValueId> factors;
};

void collect(const Graph& g, ValueId v, int depth, Product& product) {
  if (auto splat = splat_of(g, v)) {
    product.number *= *splat;
    return;
  }
  const Op* mul = made_by(g, v, OpCode::k_mul);
  if (mul && depth > 0) {
    collect(g, mul->operands[0], depth - 1, product);
    collect(g, mul->operands[1], depth - 1, product);
    return;
  }
  if (const Op* div = made_by(g, v, OpCode::k_div))
    if (auto divisor = splat_of(g, div->operands[1]); divisor && *divisor != 0) {
      product.number /= *divisor;
      return collect(g, div->operands[0], depth, product);
    }
  if (const Op* pow = made_by(g, v, OpCode::k_pow))
    if (auto n = splat_of(g, pow->operands[1]); n && (*n == 2 || *n == 3)) {
      product.factors.insert(product.factors.end(), static_cast<size_t>(*n), pow->operands[0]);
      return;
    }
  product.factors.push_back(v);
}

Product product_of(const Graph& g, ValueId v) {
  Product product;
  collect(g, v, 4, product);
  return product;
}

// Equal as far as the dtype of `like` can tell.
bool is_about(const Graph& g, ValueId like, double x, double expected) {
  DType dtype = g.type(like).dtype;
  double tolerance = dtype == DType::k_bf16 ? 1e-2 : dtype == DType::k_f16 ? 2e-3 : 2e-6;
  return std::fabs(x - expected) <= tolerance * std::fabs(expected);
}

// The other operand of add(1, y), or kNone.
ValueId plus_one(const Graph& g, ValueId v) {
  const Op* add = made_by(g, v, OpCode::k_add);
  if (!add) return kNone;
  for (size_t k = 0; k < 2; ++k)
    if (splat_of(g, add->operands[k]) == 1.0) return add->operands[1 - k];
  return kNone;
}

bool is_erf_part(const Graph& g, ValueId y, ValueId x) {
  const Op* erf = made_by(g, y, OpCode::k_erf);
  if (!erf) return false;
  Product inner = product_of(g, erf->operands[0]);
  return inner.factors == std::vector<ValueId>{x} && is_about(g, x, inner.number, 0.70710678118654752);
}

// tanh(sqrt(2/pi) * (x + 0.044715 x^3))
bool is_tanh_part(const Graph& g, ValueId y, ValueId x) {
  const Op* tanh = made_by(g, y, OpCode::k_tanh);
  if (!tanh) return false;
  Product outer = product_of(g, tanh->operands[0]);
  if (outer.factors.size() != 1 || !is_about(g, x, outer.number, 0.79788456080286536)) return false;
  const Op* add = made_by(g, outer.factors[0], OpCode::k_add);
  if (!add) return false;
  for (size_t k = 0; k < 2; ++k) {
    Product cube = product_of(g, add->operands[1 - k]);
    if (add->operands[k] == x && cube.factors == std::vector<ValueId>{x, x, x} && is_about(g, x, cube.number, 0.044715)) return true;
  }
  return false;
}

}  // namespace

Result<ValueId> silu(Rewriter& r, const Op&, const ValueIds& operands) {
  for (size_t k = 0; k < 2; ++k)
    if (const Op* sigmoid = made_by(r.graph(), operands[1 - k], OpCode::k_sigmoid); sigmoid && sigmoid->operands[0] == operands[k])
      return try_emit(r, OpCode::k_silu, {operands[k]});
  return kNone;
}

Result<ValueId> gelu(Rewriter& r, const Op&, const ValueIds& operands) {
  const Graph& g = r.graph();
  Product product;
  for (ValueId v : operands) collect(g, v, 3, product);
  if (product.factors.size() != 2 || !is_about(g, operands[0], product.number, 0.5)) return kNone;
  for (size_t k = 0; k < 2; ++k) {
    ValueId x = product.factors[k], y = plus_one(g, product.factors[1 - k]);
    if (y == kNone) continue;
    if (is_erf_part(g, y, x)) return try_emit(r, OpCode::k_gelu, {x});
    if (is_tanh_part(g, y, x)) return try_emit(r, OpCode::k_gelu_tanh, {x});
  }
  return kNone;
}

}  // namespace keirin::recognise
