// SPDX-License-Identifier: Apache-2.0
//
// Recursive descent over the Python of guards_code: sizes of inputs, integer inputs, integers, + - * // %, max, min,
// comparisons (chained too), and, or, not. Anything else makes the guard unparsed, which pins the model to its hint sizes; it is
// never evaluated as text.
#include "core/capture/pt2/expr_builder.h"

namespace keirin::pt2 {
namespace {

struct Operator {
  std::string_view token;
  ExprOp op;
};
// Longer tokens first: "<" must not take the head of "<=".
constexpr Operator kComparisons[] = {
    {"<=", ExprOp::kLessThan},   {">=", ExprOp::kGreaterThan},   {"==", ExprOp::kEquality},
    {"!=", ExprOp::kUnequality}, {"<", ExprOp::kStrictLessThan}, {">", ExprOp::kStrictGreaterThan},
};

class GuardParser {
 public:
  GuardParser(std::string_view text, const ExprLimits& limits) : b_(text, limits) { guard_.text = text; }

  Guard run() && {
    uint32_t root = 0;
    if (disjunction(&root) && b_.at_end())
      guard_.expr = std::make_shared<const Expr>(std::move(b_.expr));
    else
      guard_.sizes.clear();
    return std::move(guard_);
  }

 private:
  bool refuse() { return b_.fail(Code::k_unsupported, "a guard is outside the subset"); }

  bool disjunction(uint32_t* out) {
    if (!b_.enter()) return false;
    std::vector<uint32_t> parts;
    do {
      if (!conjunction(&parts.emplace_back())) return false;
    } while (b_.take("or"));
    b_.leave();
    return parts.size() == 1 ? (*out = parts[0], true) : b_.add_call(ExprOp::kOr, std::move(parts), out);
  }

  bool conjunction(uint32_t* out) {
    std::vector<uint32_t> parts;
    do {
      if (!negation(&parts.emplace_back())) return false;
    } while (b_.take("and"));
    return parts.size() == 1 ? (*out = parts[0], true) : b_.add_call(ExprOp::kAnd, std::move(parts), out);
  }

  bool negation(uint32_t* out) {
    if (!b_.take("not")) return comparison(out);
    uint32_t inner = 0;
    if (!b_.enter() || !negation(&inner)) return false;
    b_.leave();
    return b_.add_call(ExprOp::kNot, {inner}, out);
  }

  const Operator* comparison_sign() {
    for (const Operator& o : kComparisons)
      if (b_.take(o.token)) return &o;
    return nullptr;
  }

  // a < b <= c means a < b and b <= c; b is one node that both use.
  bool comparison(uint32_t* out) {
    uint32_t left = 0, right = 0;
    if (!sum(&left)) return false;
    std::vector<uint32_t> parts;
    while (const Operator* o = comparison_sign()) {
      if (!sum(&right) || !b_.add_call(o->op, {left, right}, &parts.emplace_back())) return false;
      left = right;
    }
    if (parts.empty()) return *out = left, true;
    return parts.size() == 1 ? (*out = parts[0], true) : b_.add_call(ExprOp::kAnd, std::move(parts), out);
  }

  bool sum(uint32_t* out) {
    if (!product(out)) return false;
    while (true) {
      bool minus = b_.peek() == '-';
      if (!minus && b_.peek() != '+') return true;
      b_.take(minus ? "-" : "+");
      uint32_t right = 0;
      if (!product(&right) || (minus && !negate(right, &right)) || !b_.add_call(ExprOp::kAdd, {*out, right}, out))
        return false;
    }
  }

  bool negate(uint32_t value, uint32_t* out) {
    uint32_t minus_one = 0;
    return b_.add_integer(-1, &minus_one) && b_.add_call(ExprOp::kMul, {minus_one, value}, out);
  }

  bool product(uint32_t* out) {
    if (!unary(out)) return false;
    while (true) {
      if (b_.take("**")) return refuse();
      ExprOp op = b_.take("//")  ? ExprOp::kFloorDiv
                  : b_.take("*") ? ExprOp::kMul
                  : b_.take("%") ? ExprOp::kPythonMod
                                 : ExprOp::kInteger;
      if (op == ExprOp::kInteger) return true;
      uint32_t right = 0;
      if (!unary(&right) || !b_.add_call(op, {*out, right}, out)) return false;
    }
  }

  bool unary(uint32_t* out) {
    if (!b_.take("-")) return atom(out);
    if (!b_.enter() || !unary(out)) return false;
    b_.leave();
    return negate(*out, out);
  }

  bool atom(uint32_t* out) {
    char c = b_.peek();
    if (b_.take("(")) return disjunction(out) && b_.expect(")");
    if (c >= '0' && c <= '9') {
      int64_t value = 0;
      return b_.integer(&value) && (!b_.runs_on() || refuse()) && b_.add_integer(value, out);
    }
    return size(out);
  }

  // The arguments of max or min: two at least, for of one Python asks the largest of what is in it.
  bool extreme(ExprOp op, uint32_t* out) {
    b_.take("(");
    std::vector<uint32_t> parts;
    do {
      if (!disjunction(&parts.emplace_back())) return false;
    } while (b_.take(","));
    return parts.size() < 2 ? refuse() : b_.expect(")") && b_.add_call(op, std::move(parts), out);
  }

  // L['x']['key'][0].size()[1], or x.size()[1], or L['n'] of an integer input.
  bool size(uint32_t* out) {
    SizeRef ref;
    std::string_view root = b_.word();
    if (root.empty()) return refuse();
    if ((root == "max" || root == "min") && b_.peek() == '(') return extreme(root == "max" ? ExprOp::kMax : ExprOp::kMin, out);
    if (root != "L")
      ref.input = root;
    else if (!b_.expect("[") || !b_.quoted(&ref.input) || !b_.expect("]"))
      return false;
    while (b_.take("[")) {
      std::string key;
      int64_t index = 0;
      if (b_.peek() == '\'' || b_.peek() == '"') {
        if (!b_.quoted(&key)) return false;
        ref.steps.emplace_back(key);
      } else {
        if (!b_.integer(&index)) return false;
        ref.steps.emplace_back(index);
      }
      if (!b_.expect("]")) return false;
    }
    if (root == "L" && b_.peek() != '.') {
      ref.dim = -1;
    } else {
      if (!b_.take(".") || !b_.take("size") || !b_.take("(") || !b_.take(")") || !b_.take("[")) return refuse();
      if (!b_.integer(&ref.dim) || ref.dim < 0 || !b_.expect("]")) return refuse();
    }
    ref.symbol = spell(ref);
    size_t known = b_.expr.symbols.size();
    if (!b_.add_symbol(ref.symbol, out)) return false;
    if (b_.expr.symbols.size() > known) guard_.sizes.push_back(std::move(ref));
    return true;
  }

  static std::string spell(const SizeRef& ref) {
    std::string text = "L['" + ref.input + "']";
    for (const PathStep& step : ref.steps)
      text += std::holds_alternative<int64_t>(step) ? "[" + std::to_string(std::get<int64_t>(step)) + "]"
                                                    : "['" + std::get<std::string>(step) + "']";
    return ref.dim < 0 ? text : text + ".size()[" + std::to_string(ref.dim) + "]";
  }

  ExprBuilder b_;
  Guard guard_;
};

}  // namespace

Guard parse_guard(std::string_view text, const ExprLimits& limits) { return GuardParser(text, limits).run(); }

}  // namespace keirin::pt2
