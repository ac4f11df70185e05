// SPDX-License-Identifier: Apache-2.0
//
// One row per operation; integers stay exact or fail.
#include "core/eager/program/symbol_ops.h"

#include <cmath>
#include <functional>

namespace keirin {
namespace {

using c10::IValue;
using Operands = std::span<const IValue>;

double real(const IValue& value) { return value.toScalar().toDouble(); }
bool integral(const IValue& value) { return value.isInt() || value.isBool(); }
int64_t whole(const IValue& value) { return value.isBool() ? int64_t(value.toBool()) : value.toInt(); }
bool truth(const IValue& value) { return value.isDouble() ? value.toDouble() != 0 : whole(value) != 0; }

int64_t narrow(double value) {
  TORCH_CHECK(value >= -0x1p63 && value < 0x1p63, "a size overflows 64 bits");
  return static_cast<int64_t>(value);
}

int64_t floor_div(int64_t a, int64_t b) {
  TORCH_CHECK(b != 0, "integer division or modulo by zero");
  const __int128 quotient = static_cast<__int128>(a) / b;  // wide: INT64_MIN / -1
  const __int128 floored = quotient - ((a % (b == -1 ? 1 : b)) != 0 && ((a < 0) != (b < 0)));
  TORCH_CHECK(floored <= INT64_MAX, "a size overflows 64 bits");
  return static_cast<int64_t>(floored);
}

enum class Exact { kAdd, kSub, kMul };
template <Exact op>
IValue arithmetic(Operands v) {
  if (!integral(v[0]) || !integral(v[1])) {
    const double a = real(v[0]), b = real(v[1]);
    return op == Exact::kAdd ? a + b : op == Exact::kSub ? a - b : a * b;
  }
  const int64_t a = whole(v[0]), b = whole(v[1]);
  int64_t result = 0;
  const bool overflow = op == Exact::kAdd   ? __builtin_add_overflow(a, b, &result)
                        : op == Exact::kSub ? __builtin_sub_overflow(a, b, &result)
                                            : __builtin_mul_overflow(a, b, &result);
  TORCH_CHECK(!overflow, "a size overflows 64 bits");
  return result;
}

IValue floordiv(Operands v) {
  if (integral(v[0]) && integral(v[1])) return floor_div(whole(v[0]), whole(v[1]));
  return std::floor(real(v[0]) / real(v[1]));
}

IValue modulo(Operands v) {
  if (integral(v[0]) && integral(v[1])) {
    const int64_t a = whole(v[0]), b = whole(v[1]);
    return b == -1 ? int64_t{0} : a - floor_div(a, b) * b;
  }
  const double b = real(v[1]), remainder = std::fmod(real(v[0]), b);
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

IValue truediv(Operands v) {
  TORCH_CHECK(real(v[1]) != 0, "division by zero");
  return real(v[0]) / real(v[1]);
}

IValue power(Operands v) {
  if (!integral(v[0]) || !integral(v[1]) || whole(v[1]) < 0) return std::pow(real(v[0]), real(v[1]));
  int64_t result = 1;
  for (int64_t i = 0; i < whole(v[1]) && result != 0; ++i) {
    TORCH_CHECK(!__builtin_mul_overflow(result, whole(v[0]), &result), "a size overflows 64 bits");
    if (result == 1 && whole(v[0]) == 1) break;
  }
  return result;
}

IValue negate(Operands v) {
  if (!integral(v[0])) return -real(v[0]);
  return arithmetic<Exact::kSub>(std::array<IValue, 2>{int64_t{0}, v[0]});
}

IValue unchanged(Operands v) { return v[0]; }

IValue shift_left(Operands v) {
  int64_t result = 0;
  TORCH_CHECK(whole(v[1]) >= 0, "negative shift count");
  TORCH_CHECK(whole(v[0]) == 0 || (whole(v[1]) < 63 && !__builtin_mul_overflow(whole(v[0]), int64_t{1} << whole(v[1]), &result)),
              "a size overflows 64 bits");
  return result;
}

IValue shift_right(Operands v) {
  TORCH_CHECK(whole(v[1]) >= 0, "negative shift count");
  return whole(v[0]) >> std::min<int64_t>(whole(v[1]), 63);
}

template <template <class> class Compare>
IValue compare(Operands v) {
  if (integral(v[0]) && integral(v[1])) return Compare<int64_t>()(whole(v[0]), whole(v[1]));
  return Compare<double>()(real(v[0]), real(v[1]));
}

IValue logical_and(Operands v) {
  if (v[0].isBool() && v[1].isBool()) return v[0].toBool() && v[1].toBool();
  return whole(v[0]) & whole(v[1]);
}
IValue logical_or(Operands v) {
  if (v[0].isBool() && v[1].isBool()) return v[0].toBool() || v[1].toBool();
  return whole(v[0]) | whole(v[1]);
}
IValue logical_not(Operands v) { return !truth(v[0]); }
IValue maximum(Operands v) { return compare<std::less>(v).toBool() ? v[1] : v[0]; }
IValue minimum(Operands v) { return compare<std::less>(v).toBool() ? v[0] : v[1]; }
IValue to_int(Operands v) { return integral(v[0]) ? whole(v[0]) : narrow(std::trunc(real(v[0]))); }
IValue to_float(Operands v) { return real(v[0]); }
IValue floor_of(Operands v) { return integral(v[0]) ? whole(v[0]) : narrow(std::floor(real(v[0]))); }
IValue ceil_of(Operands v) { return integral(v[0]) ? whole(v[0]) : narrow(std::ceil(real(v[0]))); }
IValue round_of(Operands v) { return integral(v[0]) ? whole(v[0]) : narrow(std::nearbyint(real(v[0]))); }
IValue square_root(Operands v) {
  TORCH_CHECK(!(real(v[0]) < 0), "the square root of a negative number");  // Python raises, std::sqrt gives NaN
  return std::sqrt(real(v[0]));
}
IValue choose(Operands v) { return truth(v[0]) ? v[1] : v[2]; }

struct Row {
  std::string_view target;
  size_t arity;
  SymbolOp op;
};

constexpr Row kRows[] = {
    {"_operator.add", 2, arithmetic<Exact::kAdd>},
    {"_operator.sub", 2, arithmetic<Exact::kSub>},
    {"_operator.mul", 2, arithmetic<Exact::kMul>},
    {"_operator.floordiv", 2, floordiv},
    {"_operator.truediv", 2, truediv},
    {"_operator.mod", 2, modulo},
    {"_operator.pow", 2, power},
    {"_operator.neg", 1, negate},
    {"_operator.pos", 1, unchanged},
    {"_operator.lshift", 2, shift_left},
    {"_operator.rshift", 2, shift_right},
    {"_operator.eq", 2, compare<std::equal_to>},
    {"_operator.ne", 2, compare<std::not_equal_to>},
    {"_operator.lt", 2, compare<std::less>},
    {"_operator.le", 2, compare<std::less_equal>},
    {"_operator.gt", 2, compare<std::greater>},
    {"_operator.ge", 2, compare<std::greater_equal>},
    {"_operator.and_", 2, logical_and},
    {"_operator.or_", 2, logical_or},
    {"_operator.not_", 1, logical_not},
    {"torch.sym_not", 1, logical_not},
    {"torch.sym_max", 2, maximum},
    {"torch.sym_min", 2, minimum},
    {"torch.sym_int", 1, to_int},
    {"torch.sym_float", 1, to_float},
    {"torch.sym_ite", 3, choose},
    {"torch._sym_sqrt", 1, square_root},
    {"torch.sym_sqrt", 1, square_root},
    {"math.trunc", 1, to_int},
    {"math.floor", 1, floor_of},
    {"math.ceil", 1, ceil_of},
    {"builtins.round", 1, round_of},
    {"round", 1, round_of},
};

template <const Row* row>
IValue checked(Operands v) {
  TORCH_CHECK(v.size() == row->arity, row->target, " takes ", row->arity, " operands, got ", v.size());
  return row->op(v);
}

template <size_t... i>
constexpr auto make_checked(std::index_sequence<i...>) {
  return std::array<SymbolOp, sizeof...(i)>{checked<&kRows[i]>...};
}

}  // namespace

SymbolOp find_symbol_op(std::string_view target) {
  static constexpr auto kChecked = make_checked(std::make_index_sequence<std::size(kRows)>());
  for (size_t i = 0; i < std::size(kRows); ++i) {
    if (kRows[i].target == target) return kChecked[i];
  }
  return nullptr;
}

}  // namespace keirin
