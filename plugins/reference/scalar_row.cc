// SPDX-License-Identifier: Apache-2.0
//
// SCALAR rows by instantiating their template of abi/scalar.h with double and with wrapping integers.
#include <cmath>

#include "abi/scalar.h"
#include "plugins/reference/node.h"

namespace keirin::reference {
namespace {

using scalar::Int;

// Which number types a row of the class is instantiated with.
struct num {
  static constexpr bool kDouble = true, kInt = true, kBool = false;
};
struct flt {
  static constexpr bool kDouble = true, kInt = false, kBool = false;
};
struct integer {
  static constexpr bool kDouble = false, kInt = true, kBool = false;
};
struct truth {
  static constexpr bool kDouble = false, kInt = false, kBool = true;
};
struct any {
  static constexpr bool kDouble = true, kInt = true, kBool = false;
};
#define KRN_CLASS_num num
#define KRN_CLASS_flt flt
#define KRN_CLASS_int integer
#define KRN_CLASS_bool truth
#define KRN_CLASS_any any

void put(Array& out, int64_t k, double v) { out.d[k] = v; }
void put(Array& out, int64_t k, Int v) { out.i[k] = v.v; }
void put(Array& out, int64_t k, bool v) { out.i[k] = v; }

double number_at(const Array& a, int64_t k, double) { return a.d[k]; }
Int number_at(const Array& a, int64_t k, Int) { return Int(a.i[k]); }
bool number_at(const Array& a, int64_t k, bool) { return a.i[k] != 0; }

template <int kArity, class T, class F>
void apply(const Node& node, Array& out, T type, F&& f) {
  const Array& a = node.operand(0);
  for (int64_t k = 0, n = out.count(); k < n; ++k) {
    auto at = [&](size_t i) { return number_at(node.operand(i), k, type); };
    if constexpr (kArity == 1)
      put(out, k, f(number_at(a, k, type)));
    else if constexpr (kArity == 2)
      put(out, k, f(number_at(a, k, type), at(1)));
    else if constexpr (kArity == 3)
      put(out, k, f(number_at(a, k, type), at(1), at(2)));
    else
      put(out, k, f(number_at(a, k, type), at(1), at(2), at(3)));
  }
}

template <int kArity, class C, class F>
Arrays instantiate(const Node& node, F&& f) {
  Arrays out{node.result()};
  if (node.operand(0).floats()) {
    if constexpr (C::kDouble) return apply<kArity>(node, out[0], 0.0, f), out;
  } else {
    if constexpr (C::kInt) return apply<kArity>(node, out[0], Int(0), f), out;
    if constexpr (C::kBool) return apply<kArity>(node, out[0], false, f), out;
  }
  throw kit::Error(KRN_STATUS_invalid_input, "a row was given a dtype that it does not take");
}

Arrays select_row(const Node& node) {
  Arrays out{node.result()};
  const Array &c = node.operand(0), &a = node.operand(1), &b = node.operand(2);
  for (int64_t k = 0, n = out[0].count(); k < n; ++k) {
    if (a.floats())
      out[0].d[k] = rows::row_select(c.i[k] != 0, a.d[k], b.d[k]);
    else
      out[0].i[k] = rows::row_select(c.i[k] != 0, Int(a.i[k]), Int(b.i[k])).v;
  }
  return out;
}

// Out of range the result is unspecified: here 0.
int64_t truncated(double v) { return std::abs(v) < 9.2e18 ? static_cast<int64_t>(v) : 0; }

Arrays cast_row(const Node& node) {
  Arrays out{node.result()};
  const Array& x = node.operand(0);
  const bool to_bool = out[0].dtype == k_bool;
  for (int64_t k = 0, n = out[0].count(); k < n; ++k) {
    if (out[0].floats())
      out[0].d[k] = x.as_double(k);
    else if (x.floats())
      out[0].i[k] = to_bool ? x.d[k] != 0 : truncated(x.d[k]);
    else
      out[0].i[k] = x.i[k];
  }
  return out;
}

}  // namespace

Arrays scalar_row(const Node& node) {
  if (node.op() == kOp_select) return select_row(node);
  if (node.op() == kOp_cast) return cast_row(node);
  switch (node.op()) {
#define KRN_SCALAR(id, name, arity, dtypes, result, domain, tolerance)                                       \
  case id:                                                                                                   \
    if constexpr (id != kOp_select && id != kOp_cast)                                                          \
      return instantiate<arity, KRN_CLASS_##dtypes>(node, [](auto... x) { return rows::row_##name(x...); }); \
    break;
#define KRN_REDUCE(...)
#define KRN_MOVE(...)
#define KRN_FACTORY(...)
#define KRN_COMPOSITE(...)
#include "abi/ops.def"
#undef KRN_SCALAR
#undef KRN_REDUCE
#undef KRN_MOVE
#undef KRN_FACTORY
#undef KRN_COMPOSITE
    default:
      break;
  }
  return {};
}

}  // namespace keirin::reference
