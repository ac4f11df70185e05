// SPDX-License-Identifier: Apache-2.0
//
// Parsing and evaluation of size expressions and guards.
#include "core/capture/pt2/sym_expr.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace keirin::pt2 {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

int64_t integer(const std::string& text, const SymbolValues& symbols = {}) {
  Result<ExprPtr> e = parse_srepr(text);
  EXPECT_TRUE(e.ok()) << text << "\n" << e.status().text();
  if (!e.ok()) return -999;
  Result<int64_t> v = evaluate_int(**e, symbols);
  EXPECT_TRUE(v.ok()) << text << "\n" << v.status().text();
  return v.ok() ? *v : -999;
}

std::string failure(const std::string& text, const SymbolValues& symbols = {}) {
  Result<ExprPtr> e = parse_srepr(text);
  if (!e.ok()) return e.status().message().what;
  Result<SymValue> v = evaluate(**e, symbols);
  return v.ok() ? "ok" : v.status().message().what;
}

double real(const std::string& text) {
  Result<ExprPtr> e = parse_srepr(text);
  EXPECT_TRUE(e.ok()) << text;
  Result<SymValue> v = evaluate(**e, {});
  EXPECT_TRUE(v.ok() && std::holds_alternative<double>(*v)) << text;
  return v.ok() && std::holds_alternative<double>(*v) ? std::get<double>(*v) : -999;
}

bool truth(const std::string& text, const SymbolValues& symbols = {}) {
  Result<ExprPtr> e = parse_srepr(text);
  EXPECT_TRUE(e.ok()) << text;
  Result<bool> v = evaluate_bool(**e, symbols);
  EXPECT_TRUE(v.ok()) << text << "\n" << v.status().text();
  return v.ok() && *v;
}

TEST(SymExpr, ReadsLeaves) {
  EXPECT_EQ(integer("Integer(-3)"), -3);
  EXPECT_EQ(integer("Integer(9223372036854775807)"), kMax);
  EXPECT_EQ(integer("Integer(-9223372036854775808)"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(integer("Symbol('s77', positive=True, integer=True)", {{"s77", 5}}), 5);
  EXPECT_EQ(real("Float('0.5', precision=53)"), 0.5);
  EXPECT_EQ(real("-int_oo"), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(truth("true"));
  Result<ExprPtr> bare = parse_srepr("Symbol('s77', integer=True)");
  ASSERT_TRUE(bare.ok());
  ASSERT_NE((*bare)->bare_symbol(), nullptr);
  EXPECT_EQ(*(*bare)->bare_symbol(), "s77");
  EXPECT_EQ((*parse_srepr("Add(Symbol('a'), Symbol('a'))"))->symbols.size(), 1u);
}

TEST(SymExpr, ComputesEveryIntegerFunction) {
  const SymbolValues s = {{"s", 7}};
  EXPECT_EQ(integer("Add(Integer(2), Mul(Integer(3), Symbol('s')))", s), 23);
  EXPECT_EQ(integer("Mul(Rational(1, 2), Add(Symbol('s'), Integer(1)))", s), 4);
  EXPECT_EQ(integer("Pow(Symbol('s'), Integer(2))", s), 49);
  EXPECT_EQ(integer("Mul(Integer(14), Pow(Symbol('s'), Integer(-1)))", s), 2);
  EXPECT_EQ(integer("PowByNatural(Integer(-2), Integer(63))"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(integer("FloorDiv(Integer(-7), Integer(2))"), -4);
  EXPECT_EQ(integer("CleanDiv(Integer(-8), Integer(2))"), -4);
  EXPECT_EQ(integer("CeilDiv(Integer(-7), Integer(2))"), -3);
  EXPECT_EQ(integer("CeilDiv(Integer(7), Integer(2))"), 4);
  EXPECT_EQ(integer("Mod(Integer(-7), Integer(3))"), 2);
  EXPECT_EQ(integer("PythonMod(Integer(7), Integer(-3))"), -2);
  EXPECT_EQ(integer("ModularIndexing(Integer(29), Integer(4), Integer(5))"), 2);
  EXPECT_EQ(integer("Max(Integer(3), Symbol('s'), Integer(-1))", s), 7);
  EXPECT_EQ(integer("Min(Integer(3), Symbol('s'), int_oo)", s), 3);
  EXPECT_EQ(integer("Where(StrictGreaterThan(Symbol('s'), Integer(2)), Symbol('s'), Integer(3))", s), 7);
  EXPECT_EQ(integer("Identity(Symbol('s'))", s), 7);
  EXPECT_EQ(integer("LShift(Integer(3), Integer(4))"), 48);
  EXPECT_EQ(integer("RShift(Integer(-5), Integer(1))"), -3);
  EXPECT_EQ(integer("CeilToInt(Float('2.1', precision=53))"), 3);
  EXPECT_EQ(integer("FloorToInt(Float('-2.1', precision=53))"), -3);
  EXPECT_EQ(integer("TruncToInt(FloatTrueDiv(Symbol('s'), Float('-2.0', precision=53)))", s), -3);
  EXPECT_EQ(integer("RoundToInt(Float('2.5', precision=53))"), 2);
  EXPECT_EQ(integer("RoundToInt(Rational(7, 2))"), 4);
  EXPECT_EQ(integer("BitwiseFn_bitwise_and(Symbol('s'), Integer(-4))", s), 4);
  EXPECT_EQ(integer("BitwiseFn_bitwise_or(Symbol('s'), Integer(8))", s), 15);
  const std::string choice = "Piecewise(ExprCondPair(Integer(1), StrictLessThan(Symbol('s'), Integer(7))), "
                             "ExprCondPair(Integer(2), Equality(Symbol('s'), Integer(7))), ExprCondPair(Integer(3), true))";
  EXPECT_EQ(integer(choice, {{"s", 6}}), 1);
  EXPECT_EQ(integer(choice, s), 2);
  EXPECT_EQ(integer(choice, {{"s", 8}}), 3);
}

TEST(SymExpr, ComputesEveryFloatAndBooleanFunction) {
  EXPECT_EQ(real("IntTrueDiv(Integer(7), Integer(2))"), 3.5);
  EXPECT_EQ(real("FloatTrueDiv(Float('7.0', precision=53), Float('2.0', precision=53))"), 3.5);
  EXPECT_EQ(real("FloatPow(Float('2.0', precision=53), Float('0.5', precision=53))"), std::sqrt(2.0));
  EXPECT_EQ(real("ToFloat(Integer(3))"), 3.0);
  EXPECT_EQ(real("OpaqueUnaryFn_sqrt(Integer(2))"), std::sqrt(2.0));
  EXPECT_EQ(real("TruncToFloat(Float('-3.7', precision=53))"), -3.0);
  EXPECT_EQ(real("RoundDecimal(Float('2.345', precision=53), Integer(1))"), 2.3);
  for (const auto& [op, less, equal, greater] : {std::tuple{"Equality", false, true, false},
                                                 {"Unequality", true, false, true},
                                                 {"LessThan", true, true, false},
                                                 {"StrictLessThan", true, false, false},
                                                 {"GreaterThan", false, true, true},
                                                 {"StrictGreaterThan", false, false, true}}) {
    EXPECT_EQ(truth(std::string(op) + "(Integer(1), Integer(2))"), less) << op;
    EXPECT_EQ(truth(std::string(op) + "(Integer(2), Integer(2))"), equal) << op;
    EXPECT_EQ(truth(std::string(op) + "(Integer(3), Integer(2))"), greater) << op;
  }
  EXPECT_FALSE(truth("And(true, false)"));
  EXPECT_TRUE(truth("Or(false, true)"));
  EXPECT_TRUE(truth("Not(false)"));
}

TEST(SymExpr, IsExactOrAnError) {
  EXPECT_EQ(integer("FloorDiv(Mul(Integer(9223372036854775807), Integer(3)), Integer(3))"), kMax);
  EXPECT_EQ(failure("Mul(Integer(9223372036854775807), Integer(2))"), "the value overflows");
  EXPECT_EQ(failure("Pow(Integer(3), Integer(9223372036854775807))"), "the value overflows");
  EXPECT_EQ(failure("Rational(1, 2)"), "the value is not an integer");
  EXPECT_EQ(failure("CleanDiv(Integer(7), Integer(2))"), "a clean division has a rest");
  EXPECT_EQ(failure("FloorDiv(Integer(7), Integer(0))"), "division by zero");
  EXPECT_EQ(failure("Symbol('s0')"), "the symbol s0 has no value");
  EXPECT_EQ(failure("CeilToInt(oo)"), "the value overflows");
  EXPECT_EQ(failure("LShift(Integer(1), Integer(-1))"), "a shift is out of range");
  EXPECT_EQ(failure("Add(true, Integer(1))"), "a condition stands where a number belongs");
  EXPECT_EQ(failure("Not(Integer(1))"), "a number stands where a condition belongs");
  EXPECT_EQ(failure("OpaqueUnaryFn_sqrt(Integer(-1))"), "the square root of a negative number");
  EXPECT_EQ(failure("BitwiseFn_bitwise_or(Rational(1, 2), Integer(1))"), "a bitwise operation on a number that is not an integer");
  EXPECT_EQ(failure("Piecewise(Integer(1))"), "an argument of Piecewise is not an ExprCondPair");
  EXPECT_EQ(failure("Piecewise(ExprCondPair(Integer(1), Integer(1)))"), "a number stands where a condition belongs");
  EXPECT_EQ(failure("Piecewise(ExprCondPair(Integer(1), false))"), "no condition of a Piecewise is true");
  EXPECT_EQ(failure("Add(ExprCondPair(Integer(1), true), Integer(1))"), "an ExprCondPair stands outside a Piecewise");
}

TEST(SymExpr, TheBranchNotTakenMayFail) {
  EXPECT_EQ(
      integer("Where(Equality(Symbol('s'), Integer(0)), Integer(1), FloorDiv(Integer(8), Symbol('s')))", {{"s", 0}}),
      1);
  EXPECT_FALSE(truth("And(false, Equality(FloorDiv(Integer(1), Integer(0)), Integer(1)))"));
}

TEST(SymExpr, RefusesWhatItDoesNotKnow) {
  Result<ExprPtr> e = parse_srepr("OpaqueUnaryFn_sinh(Integer(4))");
  ASSERT_FALSE(e.ok());
  EXPECT_EQ(e.status().code(), Code::k_unsupported);
  EXPECT_EQ(e.status().message().what, "a size uses the unknown function \"OpaqueUnaryFn_sinh\"");
  for (const char* text :
       {"", "Add", "Add(", "Add()", "Add(Integer(1)", "Integer(1))", "Integer(1.5)", "Integer(9223372036854775808)",
        "Rational(1, 0)", "Symbol('s", "Symbol(s)", "Symbol('s', positive)", "Pow(Integer(1))", "-Integer(1)",
        "Float('x', precision=53)", "__import__('os')", "Symbol('a\\'b')"}) {
    Result<ExprPtr> bad = parse_srepr(text);
    EXPECT_FALSE(bad.ok()) << text;
    EXPECT_NE(bad.status().message().what, "") << text;
  }
}

TEST(SymExpr, KeepsItsLimits) {
  std::string deep, wide = "Add(Integer(1)";
  for (int i = 0; i < 200; ++i) deep += "Identity(";
  EXPECT_EQ(failure(deep), "an expression is nested deeper than 128");
  for (int i = 0; i < 5000; ++i) wide += ", Integer(1)";
  EXPECT_EQ(failure(wide + ")"), "an expression has more than 4096 terms");
}

TEST(Guard, ReadsTheSubset) {
  Guard g = parse_guard("L['y'].size()[0] <= L['x'].size()[1]");
  ASSERT_NE(g.expr, nullptr);
  ASSERT_EQ(g.sizes.size(), 2u);
  EXPECT_EQ(g.sizes[0].input, "y");
  EXPECT_EQ(g.sizes[1].dim, 1);
  EXPECT_TRUE(*evaluate_bool(*g.expr, {{"L['y'].size()[0]", 3}, {"L['x'].size()[1]", 3}}));
  EXPECT_FALSE(*evaluate_bool(*g.expr, {{"L['y'].size()[0]", 4}, {"L['x'].size()[1]", 3}}));
}

TEST(Guard, FollowsPythonPrecedence) {
  auto value = [](const char* text, int64_t x) {
    Guard g = parse_guard(text);
    EXPECT_NE(g.expr, nullptr) << text;
    return g.expr != nullptr && *evaluate_bool(*g.expr, {{"L['x'].size()[0]", x}});
  };
  EXPECT_TRUE(value("x.size()[0] // 5 != 1", 4));
  EXPECT_FALSE(value("x.size()[0] // 5 != 1", 9));
  EXPECT_TRUE(value("2 + 3 * 4 - 1 - 1 == 12", 0));
  EXPECT_TRUE(value("-7 // 2 == -4 and -7 % 3 == 2", 0));
  EXPECT_TRUE(value("not 1 == 2 or 1 == 1 and 1 == 2", 0));
  EXPECT_TRUE(value("0 < x.size()[0] <= 4 < 9", 4));
  EXPECT_FALSE(value("0 < x.size()[0] <= 4 < 9", 5));
  EXPECT_TRUE(value("(L['x'].size()[0] - 1) * -1 == (-3)", 4));
}

TEST(Guard, ReadsStructuredAndIntegerInputs) {
  Guard g = parse_guard("L['d'][\"k\"][2].size()[1] >= L['n']");
  ASSERT_NE(g.expr, nullptr);
  EXPECT_EQ(g.sizes[0].symbol, "L['d']['k'][2].size()[1]");
  EXPECT_EQ(std::get<int64_t>(g.sizes[0].steps[1]), 2);
  EXPECT_EQ(g.sizes[1].symbol, "L['n']");
  EXPECT_EQ(g.sizes[1].dim, -1);
}

// As an export writes the bounds of a number that slices: max(1, L['k']) == L['k'].
TEST(Guard, ReadsTheLargerAndTheSmaller) {
  const auto value = [](const char* text, int64_t k) {
    const Guard g = parse_guard(text);
    EXPECT_NE(g.expr, nullptr) << text;
    return g.expr != nullptr && *evaluate_bool(*g.expr, {{"L['k']", k}});
  };
  for (int64_t k = -1; k < 9; ++k) {
    EXPECT_EQ(value("max(1, L['k']) == L['k']", k), k >= 1);
    EXPECT_EQ(value("min(L['k'], 4, 6) != L['k']", k), k > 4);
    EXPECT_EQ(value("max(0, min(L['k'] + 1, 5)) - 1 == L['k']", k), k >= -1 && k < 5);
  }
  const Guard named = parse_guard("max.size()[0] == 3");  // an input may be called so
  ASSERT_EQ(named.sizes.size(), 1u);
  EXPECT_EQ(named.sizes[0].input, "max");
}

TEST(Guard, LeavesTheRestUnparsed) {
  for (const char* text :
       {"", "L['x'].stride()[0] == 1", "x == None", "L['x'].size()[0] / 2 == 1", "L['x'].size()[0] ** 2 == 4",
        "L['x'].size()[-1] == 1", "L['x'].size()[0] == 1.5", "Max(1, 2) == 2", "L['x'].size()[0] == 1 # why",
        "L['x'].size()[0] == ", "import os", "1 == 1e3", "max(1) == 1", "max() == 1", "min(1, 2 == 1", "max(1, 2,) == 2"}) {
    Guard g = parse_guard(text);
    EXPECT_EQ(g.expr, nullptr) << text;
    EXPECT_EQ(g.text, text);
    EXPECT_TRUE(g.sizes.empty());
  }
}

}  // namespace
}  // namespace keirin::pt2
