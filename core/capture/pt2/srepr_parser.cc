// SPDX-License-Identifier: Apache-2.0
//
// Recursive descent over sympy's srepr: leaves, and calls of exactly the names in sym_ops.def.
#include <array>
#include <cstdlib>

#include "core/capture/pt2/expr_builder.h"

namespace keirin::pt2 {
namespace {

struct Call {
  std::string_view name;
  ExprOp op;
  size_t min_args, max_args;
};
constexpr Call kCalls[] = {
#define KRN_SYM(name, min_args, max_args) {#name, ExprOp::k##name, min_args, max_args},
#include "core/capture/pt2/sym_ops.def"
#undef KRN_SYM
};

class SreprParser {
 public:
  SreprParser(std::string_view text, const ExprLimits& limits) : b_(text, limits) {}

  Result<ExprPtr> run() {
    uint32_t root = 0;
    if (expression(&root) && !b_.at_end()) b_.fail(Code::k_corrupt, "an expression goes on behind its end");
    if (!b_.status.ok()) return b_.status;
    return ExprPtr(std::make_shared<const Expr>(std::move(b_.expr)));
  }

 private:
  bool expression(uint32_t* out) {
    if (!b_.enter()) return false;
    bool done = b_.take("-") ? infinity(b_.word(), ExprOp::kNegativeInfinity, out) : positive(out);
    b_.leave();
    return done;
  }

  bool infinity(std::string_view word, ExprOp op, uint32_t* out) {
    if (word != "oo" && word != "int_oo") return b_.fail(Code::k_corrupt, "a minus sign stands before no infinity");
    return b_.add_call(op, {}, out);
  }

  bool positive(uint32_t* out) {
    std::string_view word = b_.word();
    if (word.empty()) return b_.fail(Code::k_corrupt, "an expression lacks a term");
    if (word == "oo" || word == "int_oo") return infinity(word, ExprOp::kInfinity, out);
    if (word == "true" || word == "false") return b_.add(ExprNode{ExprOp::kBool, word == "true", 1, 0, {}}, out);
    if (word == "Integer") return integer(out);
    if (word == "Rational") return rational(out);
    if (word == "Float") return real(out);
    if (word == "Symbol") return symbol(out);
    for (const Call& call : kCalls)
      if (call.name == word) return arguments(call, out);
    return b_.fail(Code::k_unsupported,
                   "a size uses the unknown function \"" + std::string(word.substr(0, 100)) + "\"");
  }

  bool integer(uint32_t* out) {
    int64_t value = 0;
    return b_.expect("(") && b_.integer(&value) && b_.expect(")") && b_.add_integer(value, out);
  }

  bool rational(uint32_t* out) {
    int64_t num = 0, den = 0;
    if (!b_.expect("(") || !b_.integer(&num) || !b_.expect(",") || !b_.integer(&den) || !b_.expect(")")) return false;
    if (den <= 0) return b_.fail(Code::k_corrupt, "a fraction has no positive denominator");
    return b_.add(ExprNode{ExprOp::kRational, num, den, 0, {}}, out);
  }

  bool real(uint32_t* out) {
    std::string digits;
    if (!b_.expect("(") || !b_.quoted(&digits) || !keywords()) return false;
    char* end = nullptr;
    double value = std::strtod(digits.c_str(), &end);
    if (end != digits.c_str() + digits.size()) return b_.fail(Code::k_corrupt, "a Float holds no number");
    return b_.add(ExprNode{ExprOp::kFloat, 0, 1, value, {}}, out);
  }

  // Assumptions (positive=True, ...) say what range_constraints say better.
  bool symbol(uint32_t* out) {
    std::string name;
    return b_.expect("(") && b_.quoted(&name) && keywords() && b_.add_symbol(name, out);
  }

  // ", key=value" any number of times, then the closing bracket.
  bool keywords() {
    while (b_.take(",")) {
      if (b_.word().empty() || !b_.expect("=") || b_.word().empty())
        return b_.fail(Code::k_corrupt, "a keyword argument is damaged");
    }
    return b_.expect(")");
  }

  bool arguments(const Call& call, uint32_t* out) {
    std::vector<uint32_t> args;
    if (!b_.expect("(")) return false;
    do {
      if (!expression(&args.emplace_back())) return false;
    } while (b_.take(","));
    if (!b_.expect(")")) return false;
    if (args.size() < call.min_args || args.size() > call.max_args)
      return b_.fail(Code::k_corrupt, std::string(call.name) + " has " + std::to_string(args.size()) + " arguments");
    return b_.add_call(call.op, std::move(args), out);
  }

  ExprBuilder b_;
};

}  // namespace

Result<ExprPtr> parse_srepr(std::string_view text, const ExprLimits& limits) { return SreprParser(text, limits).run(); }

const std::string* Expr::bare_symbol() const {
  return nodes.size() == 1 && nodes[0].op == ExprOp::kSymbol ? &symbols[static_cast<size_t>(nodes[0].num)] : nullptr;
}

}  // namespace keirin::pt2
