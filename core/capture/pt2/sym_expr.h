// SPDX-License-Identifier: Apache-2.0
//
// Size expressions of an exported program: sympy's `srepr` text and the subset of Python in which guards are written,
// parsed into one tree, and evaluated over a map symbol -> int64.
// It is not an algebra system: nothing is simplified and nothing is solved. Integer results are exact or an error: the
// arithmetic inside is on 128-bit rationals, every overflow and every non-integer result is a Status.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/status.h"

namespace keirin::pt2 {

// Every operation that an expression may call. The names are those of the file.
enum class ExprOp : uint8_t {
  kInteger,
  kRational,
  kFloat,
  kBool,
  kInfinity,
  kNegativeInfinity,
  kSymbol,  // leaves
#define KRN_SYM(name, min_args, max_args) k##name,
#include "core/capture/pt2/sym_ops.def"
#undef KRN_SYM
};

// Trees are flat: children stand before their parent, the root is the last node.
struct ExprNode {
  ExprOp op;
  int64_t num = 0;             // kInteger; numerator of kRational; 0/1 of kBool; index into Expr::symbols of kSymbol
  int64_t den = 1;             // denominator of kRational, > 0
  double real = 0;             // kFloat
  std::vector<uint32_t> args;  // indices of the children in Expr::nodes
};

struct Expr {
  std::string text;                  // as the file has it
  std::vector<ExprNode> nodes;       // never empty in a parsed expression
  std::vector<std::string> symbols;  // each once, in order of appearance
  // The name of the symbol if the whole expression is one bare symbol, else null.
  const std::string* bare_symbol() const;
};
using ExprPtr = std::shared_ptr<const Expr>;

struct ExprLimits {
  uint32_t nodes = 4096;
  uint32_t depth = 128;
};

using SymbolValues = std::map<std::string, int64_t, std::less<>>;
using SymValue = std::variant<int64_t, double, bool>;

// `corrupt` for text that is not srepr, `unsupported` for a call of an unknown name, both naming what was found.
Result<ExprPtr> parse_srepr(std::string_view text, const ExprLimits& limits = {});

// All three fail with `invalid_input` on a symbol without a value, overflow, a zero divisor or a result of another
// kind.
Result<SymValue> evaluate(const Expr& expr, const SymbolValues& symbols);
Result<int64_t> evaluate_int(const Expr& expr, const SymbolValues& symbols);
Result<bool> evaluate_bool(const Expr& expr, const SymbolValues& symbols);

// One step into a structured input: L['d'][0] is input "d", then step 0.
using PathStep = std::variant<std::string, int64_t>;

// A size of an input, or an integer input itself, that a guard reads; it stands in the tree as the symbol `symbol`.
struct SizeRef {
  std::string symbol;           // "L['x'].size()[0]" or "L['n']", spelled canonically
  std::string input;            // "x"
  std::vector<PathStep> steps;  // into a structured input
  int64_t dim = 0;              // -1: the integer input itself
};

// One line of guards_code. `expr` is null if the line is outside the subset: the model is then pinned to its hint
// sizes.
struct Guard {
  std::string text;
  ExprPtr expr;
  std::vector<SizeRef> sizes;
};

// Never fails: what it cannot parse has no `expr`.
Guard parse_guard(std::string_view text, const ExprLimits& limits = {});

}  // namespace keirin::pt2
