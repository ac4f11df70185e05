// SPDX-License-Identifier: Apache-2.0
//
// REDUCE rows: the monoids of abi/scalar.h over double and wrapping integers, and the rows that need a position or a
// truth.
#include <algorithm>
#include <cmath>
#include <limits>

#include "abi/scalar.h"
#include "plugins/reference/node.h"

namespace keirin::reference {
namespace {

using scalar::Int;

// Strides that lead from x's coordinates to the reduced element: 0 on the reduced axes.
Dims reduced_strides(const Dims& sizes, const Dims& dims) {
  Dims kept = sizes;
  for (int64_t d : dims) kept[d] = 1;
  Dims strides = row_major(kept);
  for (int64_t d : dims) strides[d] = 0;
  return strides;
}

template <class M>
Array fold(const Node& node) {
  const Array& x = node.operand(0);
  Array out = node.result();
  Dims to = reduced_strides(x.sizes, node.ints(kAttr_dims));
  if (x.floats()) {
    std::fill(out.d.begin(), out.d.end(), M::init(-INFINITY, INFINITY));
    walk<1>(x.sizes, {to}, [&](int64_t k, const auto& at) { out.d[at[0]] = M::step(out.d[at[0]], x.d[k]); });
  } else {
    using L = std::numeric_limits<int64_t>;
    std::fill(out.i.begin(), out.i.end(), M::init(Int(L::min()), Int(L::max())).v);
    walk<1>(x.sizes, {to},
            [&](int64_t k, const auto& at) { out.i[at[0]] = M::step(Int(out.i[at[0]]), Int(x.i[k])).v; });
  }
  return out;
}

Array truth(const Node& node, bool all) {
  const Array& x = node.operand(0);
  Array out = node.result();
  std::fill(out.i.begin(), out.i.end(), all);
  walk<1>(x.sizes, {reduced_strides(x.sizes, node.ints(kAttr_dims))}, [&](int64_t k, const auto& at) {
    int64_t& v = out.i[at[0]];
    v = all ? (v & (x.i[k] != 0)) : (v | (x.i[k] != 0));
  });
  return out;
}

// Whether b replaces the best a so far: NaN wins over numbers, the first of equals stays.
bool beats(double b, double a, bool greatest) {
  if (std::isnan(a)) return false;
  return std::isnan(b) || (greatest ? b > a : b < a);
}
bool beats(int64_t b, int64_t a, bool greatest) { return greatest ? b > a : b < a; }

Array position(const Node& node, bool greatest) {
  const Array& x = node.operand(0);
  Array out = node.result();
  const int64_t dim = node.ints(kAttr_dims).at(0), n = x.sizes[dim], step = row_major(x.sizes)[dim];
  auto search = [&](const auto& data) {
    for (int64_t k = 0; k < out.count(); ++k) {
      int64_t base = k / step * step * n + k % step, best = 0;
      for (int64_t j = 1; j < n; ++j)
        if (beats(data[base + j * step], data[base + best * step], greatest)) best = j;
      out.i[k] = best;
    }
  };
  if (x.floats())
    search(x.d);
  else
    search(x.i);
  return out;
}

}  // namespace

Arrays reduce_row(const Node& node) {
  switch (node.op()) {
    case kOp_sum:
      return {fold<rows::sum>(node)};
    case kOp_prod:
      return {fold<rows::prod>(node)};
    case kOp_amax:
      return {fold<rows::amax>(node)};
    case kOp_amin:
      return {fold<rows::amin>(node)};
    case kOp_any:
      return {truth(node, false)};
    case kOp_all:
      return {truth(node, true)};
    case kOp_argmax:
      return {position(node, true)};
    case kOp_argmin:
      return {position(node, false)};
    default:
      return {};
  }
}

}  // namespace keirin::reference
