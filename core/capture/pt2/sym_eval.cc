// SPDX-License-Identifier: Apache-2.0
//
// Evaluation of expressions: one pass over the flat tree. Exact values are 128-bit rationals. An error is a value that
// travels upwards, so that the branch which Where, And or Or does not take may divide by zero.
#include <cmath>
#include <limits>

#include "core/capture/pt2/sym_expr.h"

namespace keirin::pt2 {
namespace {

using Wide = __int128;

struct Value {
  enum class Kind : uint8_t { kExact, kReal, kBool, kError } kind = Kind::kError;
  Wide num = 0, den = 1;  // kExact, den > 0, lowest terms; num is 0 or 1 of kBool
  double real = 0;        // kReal
  std::string why = {};   // kError

  static Value exact(Wide v) { return {Kind::kExact, v, 1, 0, {}}; }
  static Value floating(double v) { return {Kind::kReal, 0, 1, v, {}}; }
  static Value truth(bool v) { return {Kind::kBool, v, 1, 0, {}}; }
  static Value error(std::string why) { return {Kind::kError, 0, 1, 0, std::move(why)}; }
  static Value overflow() { return error("the value overflows"); }

  bool is_exact() const { return kind == Kind::kExact; }
  bool is_error() const { return kind == Kind::kError; }
  bool is_number() const { return kind == Kind::kExact || kind == Kind::kReal; }
  bool is_integer() const { return is_exact() && den == 1; }
  double as_real() const { return is_exact() ? static_cast<double>(num) / static_cast<double>(den) : real; }
};

Wide gcd(Wide a, Wide b) {
  while (b != 0) {
    Wide r = a % b;
    a = b;
    b = r;
  }
  return a < 0 ? -a : a;
}

// Keeps numbers far enough from the edge of 128 bits that negation and comparison cannot overflow.
constexpr Wide kMost = Wide{1} << 125;
bool in_range(Wide v) { return v > -kMost && v < kMost; }

Value fraction(Wide num, Wide den) {
  if (den == 0) return Value::error("division by zero");
  if (!in_range(num) || !in_range(den)) return Value::overflow();
  if (den < 0) num = -num, den = -den;
  Wide g = gcd(num, den);
  if (g > 1) num /= g, den /= g;
  return {Value::Kind::kExact, num, den, 0, {}};
}

Value add(const Value& a, const Value& b) {
  if (!a.is_exact() || !b.is_exact()) return Value::floating(a.as_real() + b.as_real());
  Wide x = 0, y = 0, sum = 0, den = 0;
  if (__builtin_mul_overflow(a.num, b.den, &x) || __builtin_mul_overflow(b.num, a.den, &y) ||
      __builtin_add_overflow(x, y, &sum) || __builtin_mul_overflow(a.den, b.den, &den))
    return Value::overflow();
  return fraction(sum, den);
}

Value multiply(const Value& a, const Value& b) {
  if (!a.is_exact() || !b.is_exact()) return Value::floating(a.as_real() * b.as_real());
  Wide num = 0, den = 0;
  if (__builtin_mul_overflow(a.num, b.num, &num) || __builtin_mul_overflow(a.den, b.den, &den))
    return Value::overflow();
  return fraction(num, den);
}

Value reciprocal(const Value& a) { return fraction(a.den, a.num); }

Value divide(const Value& a, const Value& b) {
  if (a.is_exact() && b.is_exact()) {
    Value r = reciprocal(b);
    return r.is_error() ? r : multiply(a, r);
  }
  return b.as_real() == 0 ? Value::error("division by zero") : Value::floating(a.as_real() / b.as_real());
}

Wide floor_div(Wide a, Wide b) {
  Wide q = a / b;
  return q * b != a && (a < 0) != (b < 0) ? q - 1 : q;
}

// What an integer op makes of a real: only finite values of int64 size have an integer.
Value to_integer(double v) {
  if (!(std::fabs(v) < 9.2233720368547758e18)) return Value::overflow();
  return Value::exact(static_cast<Wide>(v));
}

Value floor_of(const Value& a) {
  return a.is_exact() ? Value::exact(floor_div(a.num, a.den)) : to_integer(std::floor(a.real));
}
Value ceil_of(const Value& a) {
  return a.is_exact() ? Value::exact(-floor_div(-a.num, a.den)) : to_integer(std::ceil(a.real));
}
Value trunc_of(const Value& a) { return a.is_exact() ? Value::exact(a.num / a.den) : to_integer(std::trunc(a.real)); }

// Half to even, as Python's round.
Value round_of(const Value& a) {
  if (!a.is_exact()) return to_integer(std::nearbyint(a.real));
  Wide low = floor_div(a.num, a.den), twice_rest = 2 * (a.num - low * a.den);
  bool up = twice_rest > a.den || (twice_rest == a.den && low % 2 != 0);
  return Value::exact(up ? low + 1 : low);
}

Value floor_divide(const Value& a, const Value& b) {
  Value q = divide(a, b);
  return q.is_error() ? q : floor_of(q);
}

Value modulo(const Value& a, const Value& b) {
  Value q = floor_divide(a, b);
  if (q.is_error()) return q;
  Value back = multiply(q, b);
  return back.is_error() ? back : add(a, multiply(Value::exact(-1), back));
}

Value power(Value base, const Value& exponent) {
  if (!base.is_exact() || !exponent.is_integer()) return Value::floating(std::pow(base.as_real(), exponent.as_real()));
  Wide n = exponent.num;
  if (n < 0) {
    base = reciprocal(base);
    n = -n;
  }
  Value result = Value::exact(1);
  for (; n > 0 && !result.is_error(); n /= 2) {
    if (base.is_error()) return base;
    if (n % 2 != 0) result = multiply(result, base);
    if (n > 1) base = multiply(base, base);
  }
  return result;
}

Value shift(const Value& a, const Value& count, bool left) {
  if (!a.is_integer() || !count.is_integer() || count.num < 0 || count.num > 120)
    return Value::error("a shift is out of range");
  Value factor = Value::exact(Wide{1} << static_cast<int>(count.num));
  return left ? multiply(a, factor) : floor_divide(a, factor);
}

Value bitwise(ExprOp op, const Value& a, const Value& b) {
  if (!a.is_integer() || !b.is_integer()) return Value::error("a bitwise operation on a number that is not an integer");
  return Value::exact(op == ExprOp::kBitwiseFn_bitwise_and ? a.num & b.num : a.num | b.num);
}

// -1, 0, 1; 2 for unordered. The range of the parts leaves room for one cross multiplication only of int64 size.
Value compare(const Value& a, const Value& b, ExprOp op) {
  int order = 0;
  if (a.is_exact() && b.is_exact()) {
    Wide x = 0, y = 0;
    if (__builtin_mul_overflow(a.num, b.den, &x) || __builtin_mul_overflow(b.num, a.den, &y)) return Value::overflow();
    order = x < y ? -1 : x > y ? 1 : 0;
  } else {
    double x = a.as_real(), y = b.as_real();
    order = x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
  }
  switch (op) {
    case ExprOp::kEquality:
      return Value::truth(order == 0);
    case ExprOp::kUnequality:
      return Value::truth(order != 0);
    case ExprOp::kLessThan:
      return Value::truth(order == -1 || order == 0);
    case ExprOp::kStrictLessThan:
      return Value::truth(order == -1);
    case ExprOp::kGreaterThan:
      return Value::truth(order == 1 || order == 0);
    default:
      return Value::truth(order == 1);
  }
}

class Evaluator {
 public:
  Evaluator(const Expr& expr, const SymbolValues& symbols) : expr_(expr), symbols_(symbols) {}

  Value run() {
    if (expr_.nodes.empty()) return Value::error("the expression is empty");
    values_.reserve(expr_.nodes.size());
    for (const ExprNode& node : expr_.nodes) values_.push_back(visit(node));
    return std::move(values_.back());
  }

 private:
  const Value& arg(const ExprNode& node, size_t i) const { return values_[node.args[i]]; }

  Value visit(const ExprNode& node) const {
    switch (node.op) {
      case ExprOp::kInteger:
        return Value::exact(node.num);
      case ExprOp::kRational:
        return fraction(node.num, node.den);
      case ExprOp::kFloat:
        return Value::floating(node.real);
      case ExprOp::kBool:
        return Value::truth(node.num != 0);
      case ExprOp::kInfinity:
        return Value::floating(std::numeric_limits<double>::infinity());
      case ExprOp::kNegativeInfinity:
        return Value::floating(-std::numeric_limits<double>::infinity());
      case ExprOp::kSymbol:
        return symbol(node);
      case ExprOp::kWhere:
        return where(node);
      case ExprOp::kExprCondPair:
        return Value::error("an ExprCondPair stands outside a Piecewise");  // kPiecewise looks behind it
      case ExprOp::kPiecewise:
        return piecewise(node);
      case ExprOp::kAnd:
        return all(node, true);
      case ExprOp::kOr:
        return all(node, false);
      case ExprOp::kNot: {
        const Value a = condition(node, 0);
        return a.is_error() ? a : Value::truth(a.num == 0);
      }
      default:
        return strict(node);
    }
  }

  Value symbol(const ExprNode& node) const {
    const std::string& name = expr_.symbols[static_cast<size_t>(node.num)];
    auto it = symbols_.find(name);
    return it == symbols_.end() ? Value::error("the symbol " + name + " has no value") : Value::exact(it->second);
  }

  // A truth value, or an error.
  Value condition(const ExprNode& node, size_t i) const {
    const Value& a = arg(node, i);
    if (a.is_error() || a.kind == Value::Kind::kBool) return a;
    return Value::error("a number stands where a condition belongs");
  }

  Value where(const ExprNode& node) const {
    const Value choice = condition(node, 0);
    return choice.is_error() ? choice : arg(node, choice.num != 0 ? 1 : 2);
  }

  // The value of the first case whose condition holds.
  Value piecewise(const ExprNode& node) const {
    for (const uint32_t i : node.args) {
      const ExprNode& pair = expr_.nodes[i];
      if (pair.op != ExprOp::kExprCondPair) return Value::error("an argument of Piecewise is not an ExprCondPair");
      const Value holds = condition(pair, 1);
      if (holds.is_error()) return holds;
      if (holds.num != 0) return arg(pair, 0);
    }
    return Value::error("no condition of a Piecewise is true");
  }

  // Python's order: the first part that decides hides the errors behind it.
  Value all(const ExprNode& node, bool neutral) const {
    for (size_t i = 0; i < node.args.size(); ++i) {
      const Value part = condition(node, i);
      if (part.is_error()) return part;
      if ((part.num != 0) != neutral) return Value::truth(!neutral);
    }
    return Value::truth(neutral);
  }

  // The ops that use all their arguments, which must be numbers.
  Value strict(const ExprNode& node) const {
    for (size_t i = 0; i < node.args.size(); ++i) {
      if (arg(node, i).is_error()) return arg(node, i);
      if (!arg(node, i).is_number()) return Value::error("a condition stands where a number belongs");
    }
    return node.args.size() == 1 ? unary(node.op, arg(node, 0)) : several(node);
  }

  static Value unary(ExprOp op, const Value& a) {
    switch (op) {
      case ExprOp::kCeilToInt:
        return ceil_of(a);
      case ExprOp::kFloorToInt:
        return floor_of(a);
      case ExprOp::kTruncToInt:
        return trunc_of(a);
      case ExprOp::kRoundToInt:
        return round_of(a);
      case ExprOp::kToFloat:
        return Value::floating(a.as_real());
      case ExprOp::kTruncToFloat:
        return Value::floating(std::trunc(a.as_real()));
      case ExprOp::kOpaqueUnaryFn_sqrt:
        return a.as_real() < 0 ? Value::error("the square root of a negative number") : Value::floating(std::sqrt(a.as_real()));
      default:
        return a;  // Identity, and Add, Mul, Max, Min of one argument
    }
  }

  Value several(const ExprNode& node) const {
    const Value &a = arg(node, 0), &b = arg(node, 1);
    switch (node.op) {
      case ExprOp::kAdd:
      case ExprOp::kMul:
      case ExprOp::kMax:
      case ExprOp::kMin:
        return fold(node);
      case ExprOp::kPow:
        return power(a, b);
      case ExprOp::kPowByNatural:
        return b.is_integer() && b.num < 0 ? Value::error("a natural exponent is negative") : power(a, b);
      case ExprOp::kFloorDiv:
        return floor_divide(a, b);
      case ExprOp::kCleanDiv: {
        Value q = divide(a, b);
        return q.is_error() || q.is_integer() ? q : Value::error("a clean division has a rest");
      }
      case ExprOp::kCeilDiv: {
        Value q = divide(a, b);
        return q.is_error() ? q : ceil_of(q);
      }
      case ExprOp::kMod:
      case ExprOp::kPythonMod:
        return modulo(a, b);
      case ExprOp::kModularIndexing: {
        Value q = floor_divide(a, b);
        return q.is_error() ? q : modulo(q, arg(node, 2));
      }
      case ExprOp::kLShift:
        return shift(a, b, true);
      case ExprOp::kRShift:
        return shift(a, b, false);
      case ExprOp::kBitwiseFn_bitwise_and:
      case ExprOp::kBitwiseFn_bitwise_or:
        return bitwise(node.op, a, b);
      case ExprOp::kIntTrueDiv:
      case ExprOp::kFloatTrueDiv:
        return b.as_real() == 0 ? Value::error("division by zero") : Value::floating(a.as_real() / b.as_real());
      case ExprOp::kFloatPow:
        return Value::floating(std::pow(a.as_real(), b.as_real()));
      case ExprOp::kRoundDecimal: {
        double scale = std::pow(10.0, b.as_real());
        return Value::floating(std::nearbyint(a.as_real() * scale) / scale);
      }
      default:
        return compare(a, b, node.op);
    }
  }

  Value fold(const ExprNode& node) const {
    Value result = arg(node, 0);
    for (size_t i = 1; i < node.args.size() && !result.is_error(); ++i) {
      const Value& next = arg(node, i);
      if (node.op == ExprOp::kAdd)
        result = add(result, next);
      else if (node.op == ExprOp::kMul)
        result = multiply(result, next);
      else {
        Value takes =
            compare(next, result, node.op == ExprOp::kMax ? ExprOp::kStrictGreaterThan : ExprOp::kStrictLessThan);
        if (takes.is_error()) return takes;
        if (takes.num != 0) result = next;
      }
    }
    return result;
  }

  const Expr& expr_;
  const SymbolValues& symbols_;
  std::vector<Value> values_;
};

Status refuse(const Expr& expr, std::string what) {
  return Status(Code::k_invalid_input, {std::move(what), "expression " + expr.text.substr(0, 300), {}, {}});
}

}  // namespace

Result<SymValue> evaluate(const Expr& expr, const SymbolValues& symbols) {
  Value v = Evaluator(expr, symbols).run();
  switch (v.kind) {
    case Value::Kind::kError:
      return refuse(expr, v.why);
    case Value::Kind::kBool:
      return SymValue(v.num != 0);
    case Value::Kind::kReal:
      return SymValue(v.real);
    case Value::Kind::kExact:
      break;
  }
  if (v.den != 1) return refuse(expr, "the value is not an integer");
  if (v.num < std::numeric_limits<int64_t>::min() || v.num > std::numeric_limits<int64_t>::max())
    return refuse(expr, "the value overflows");
  return SymValue(static_cast<int64_t>(v.num));
}

Result<int64_t> evaluate_int(const Expr& expr, const SymbolValues& symbols) {
  KRN_TRY_LET(SymValue v, evaluate(expr, symbols));
  if (const int64_t* i = std::get_if<int64_t>(&v)) return *i;
  return refuse(expr, "the value is not an integer");
}

Result<bool> evaluate_bool(const Expr& expr, const SymbolValues& symbols) {
  KRN_TRY_LET(SymValue v, evaluate(expr, symbols));
  if (const bool* b = std::get_if<bool>(&v)) return *b;
  return refuse(expr, "the value is not a condition");
}

}  // namespace keirin::pt2
