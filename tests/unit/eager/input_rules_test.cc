// SPDX-License-Identifier: Apache-2.0
//
// Which inputs an exported program takes, decided twice: by InputRules and by a few lines of arithmetic here. Programs are written by
// hand; every kind of place that a symbol can stand in is tried with every value around every limit. No torch.
#include "core/eager/weights/input_rules.h"

#include <gtest/gtest.h>

#include <limits>

namespace keirin {
namespace {

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();

pt2::SymInt sym(const std::string& name, int64_t hint) { return {0, *pt2::parse_srepr("Symbol('" + name + "', integer=True)"), hint}; }
pt2::SymInt literal(int64_t value) { return {value, nullptr, std::nullopt}; }

// forward(x, n): x of sizes [rows, 3], n a number.
struct Exported {
  pt2::Program program;
  Exported(pt2::SymInt rows, pt2::SymInt number) {
    program.name = "model";
    program.forward_arg_names = {"x", "n"};
    pt2::TensorMeta meta;
    meta.dtype = DType::k_f32;
    meta.sizes = {std::move(rows), literal(3)};
    program.graph.tensor_values["x"] = meta;
    program.graph.sym_int_values["n"] = std::move(number);
    program.inputs.resize(2);
    program.inputs[0].arg.value = pt2::TensorArg{"x"};
    program.inputs[1].arg.value = pt2::SymIntArg{"n", 0};
    program.has_tree_specs = true;
    pt2::TreeSpec leaf, args, kwargs;
    leaf.kind = pt2::TreeSpec::Kind::kLeaf;
    args.kind = pt2::TreeSpec::Kind::kTuple;
    kwargs.kind = pt2::TreeSpec::Kind::kDict;
    args.children = {leaf, leaf};
    program.in_spec.kind = pt2::TreeSpec::Kind::kTuple;
    program.in_spec.children = {args, kwargs};
  }
  // Twice: the rules remember the last call that passed.
  static bool takes(const InputRules& rules, int64_t rows, int64_t number) {
    const int64_t sizes[] = {rows, 3};
    const std::vector<InputView> inputs{{DType::k_f32, sizes, 2, 0}, {DType::k_i64, sizes, 0, number}};
    const bool once = rules.check(inputs).ok();
    EXPECT_EQ(rules.check(inputs).ok(), once);
    EXPECT_EQ(rules.bind(inputs).ok(), once);
    return once;
  }
};

TEST(InputRules, EveryPlaceOfASymbolKeepsItsRange) {
  struct Limits {
    std::optional<int64_t> min, max;
  };
  const Limits all[] = {{2, 64}, {0, 5},          {7, 7}, {std::nullopt, 9}, {3, std::nullopt}, {std::nullopt, std::nullopt},
                        {-4, 4}, {kLeast, kMost}, {-1, 0}};
  int taken = 0, refused = 0;
  for (const Limits& of_rows : all)
    for (const Limits& of_number : all) {
      Exported e(sym("s0", 4), sym("s1", 4));
      e.program.range_constraints["s0"] = {of_rows.min, of_rows.max};
      e.program.range_constraints["s1"] = {of_number.min, of_number.max};
      const InputRules rules(e.program);
      const auto inside = [](const Limits& l, int64_t v) { return v >= l.min.value_or(kLeast) && v <= l.max.value_or(kMost); };
      for (int64_t rows : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{4}, int64_t{6}, int64_t{7}, int64_t{8}, int64_t{64}, int64_t{65}})
        for (int64_t number : {kLeast, int64_t{-5}, int64_t{-4}, int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{2}, int64_t{3}, int64_t{5},
                               int64_t{6}, int64_t{7}, int64_t{8}, int64_t{9}, int64_t{10}, int64_t{64}, int64_t{65}, kMost}) {
          const bool fits = inside(of_rows, rows) && inside(of_number, number);
          ASSERT_EQ(Exported::takes(rules, rows, number), fits) << rows << " rows, number " << number;
          (fits ? taken : refused) += 1;
        }
    }
  EXPECT_GT(taken, 1000);
  EXPECT_GT(refused, 1000);
}

// One symbol in both places: the number is bound by the size, or the other way round.
TEST(InputRules, ANumberThatIsASizeMustBeThatSize) {
  Exported e(sym("s0", 4), sym("s0", 4));
  e.program.range_constraints["s0"] = {1, 8};
  const InputRules rules(e.program);
  for (int64_t rows = 0; rows < 12; ++rows)
    for (int64_t number = -2; number < 12; ++number)
      ASSERT_EQ(Exported::takes(rules, rows, number), rows == number && rows >= 1 && rows <= 8) << rows << ", " << number;
}

// A size that is a symbol's multiple, and some, where no input has the symbol itself.
TEST(InputRules, AMultipleOfASymbolBindsIt) {
  for (const int64_t more : {0, 3}) {
    const std::string text = "Add(Mul(Integer(4), Symbol('s0', integer=True)), Integer(" + std::to_string(more) + "))";
    Exported e({0, *pt2::parse_srepr(text), 4 * 4 + more}, sym("s1", 4));
    e.program.range_constraints["s0"] = {1, 8};
    e.program.range_constraints["s1"] = {1, 64};
    const InputRules rules(e.program);
    for (int64_t rows = 0; rows < 64; ++rows) {
      const bool fits = (rows - more) % 4 == 0 && rows - more >= 4 && rows - more <= 32;
      ASSERT_EQ(Exported::takes(rules, rows, 5), fits) << rows;
      const int64_t sizes[] = {rows, 3};
      if (!fits) continue;
      EXPECT_EQ((*rules.bind({{DType::k_f32, sizes, 2, 0}, {DType::k_i64, sizes, 0, 5}})).at("s0"), (rows - more) / 4);
    }
  }
  // The number that stands there as well decides; a size that does not grow evenly binds nothing.
  Exported both({0, *pt2::parse_srepr("Mul(Integer(2), Symbol('s0', integer=True))"), 8}, sym("s0", 4));
  const InputRules rules(both.program);
  for (int64_t rows = 0; rows < 12; ++rows)
    for (int64_t number = 0; number < 8; ++number) ASSERT_EQ(Exported::takes(rules, rows, number), rows == 2 * number);
  Exported square({0, *pt2::parse_srepr("Pow(Symbol('s0', integer=True), Integer(2))"), 16}, sym("s1", 4));
  EXPECT_FALSE(Exported::takes(InputRules(square.program), 10, 4));
}

TEST(InputRules, AFixedNumberIsTheOnlyOne) {
  Exported e(literal(4), literal(5));
  const InputRules rules(e.program);
  for (int64_t rows = 3; rows < 6; ++rows)
    for (int64_t number = 4; number < 7; ++number) EXPECT_EQ(Exported::takes(rules, rows, number), rows == 4 && number == 5);
}

// Guards read sizes and numbers; what is compared with what is computed here.
TEST(InputRules, GuardsSeeSizesAndNumbers) {
  struct Case {
    const char* text;
    bool (*holds)(int64_t rows, int64_t number);
  };
  const Case cases[] = {
      {"L['n'] <= 5", [](int64_t, int64_t n) { return n <= 5; }},
      {"L['n'] != 3", [](int64_t, int64_t n) { return n != 3; }},
      {"L['x'].size()[0] >= L['n']", [](int64_t r, int64_t n) { return r >= n; }},
      {"L['x'].size()[0] < 6", [](int64_t r, int64_t) { return r < 6; }},
      {"L['x'].size()[0] + L['n'] == 7", [](int64_t r, int64_t n) { return r + n == 7; }},
      {"L['x'].size()[1] == 3", [](int64_t, int64_t) { return true; }},
  };
  for (const Case& c : cases) {
    Exported e(sym("s0", 4), sym("s1", 3));
    e.program.guards.push_back(pt2::parse_guard(c.text));
    ASSERT_NE(e.program.guards[0].expr, nullptr) << c.text;
    const InputRules rules(e.program);
    for (int64_t rows = 0; rows < 9; ++rows)
      for (int64_t number = 0; number < 9; ++number)
        ASSERT_EQ(Exported::takes(rules, rows, number), c.holds(rows, number)) << c.text << ": " << rows << ", " << number;
  }
}

// A constant argument is a leaf of the call's structure and no input: what stands behind it is read at its own place.
TEST(InputRules, GuardsFindInputsBehindAConstant) {
  for (const char* text : {"L['x'].size()[0] >= 4", "max(1, L['n']) == L['n']"}) {
    Exported e(sym("s0", 4), sym("s1", 3));
    e.program.forward_arg_names = {"flag", "x", "n"};
    e.program.in_spec.children[0].children.push_back(e.program.in_spec.children[0].children[0]);
    pt2::InputSpec flag;
    flag.kind = pt2::InputSpec::Kind::kConstantInput;
    e.program.inputs.insert(e.program.inputs.begin(), flag);
    e.program.guards.push_back(pt2::parse_guard(text));
    const InputRules rules(e.program);
    for (int64_t rows = 2; rows < 7; ++rows)
      for (int64_t number = -2; number < 5; ++number)
        ASSERT_EQ(Exported::takes(rules, rows, number), text[0] == 'L' ? rows >= 4 : number >= 1) << text << ": " << rows << ", " << number;
  }
}

// forward(x, *rest), forward(rest_0, *rest) and forward(x, **more): the file has arguments of their own, guards have the stars'.
TEST(InputRules, GuardsFindWhatStarsTake) {
  struct Case {
    std::vector<std::string> names;
    const char* text;
    bool (*holds)(int64_t rows, int64_t number);
  };
  const Case cases[] = {
      {{"x", "rest_0"}, "L['rest'][0] >= 4", [](int64_t, int64_t n) { return n >= 4; }},
      {{"rest_0", "rest_1"}, "L['rest'][0].size()[0] > L['rest'][1]", [](int64_t r, int64_t n) { return r > n; }},
      {{"rest_0", "rest_0"}, "L['rest'][0] >= 4", [](int64_t, int64_t n) { return n >= 4; }},
      {{"rest_0", "rest_0"}, "L['rest_0'].size()[0] >= 4", [](int64_t r, int64_t) { return r >= 4; }},
      {{"x"}, "L['more']['n'] >= 4", [](int64_t, int64_t n) { return n >= 4; }},
      {{"x"}, "L['n'] >= 4", [](int64_t, int64_t n) { return n >= 4; }},
  };
  for (const Case& c : cases) {
    Exported e(sym("s0", 4), sym("s1", 4));
    e.program.forward_arg_names = c.names;
    if (c.names.size() == 1) {  // n by its name
      auto &args = e.program.in_spec.children[0], &kwargs = e.program.in_spec.children[1];
      kwargs.children = {args.children[1]};
      kwargs.keys = {std::string("n")};
      args.children.pop_back();
    }
    e.program.guards.push_back(pt2::parse_guard(c.text));
    const InputRules rules(e.program);
    for (int64_t rows = 0; rows < 9; ++rows)
      for (int64_t number = 0; number < 9; ++number)
        ASSERT_EQ(Exported::takes(rules, rows, number), c.holds(rows, number)) << c.text << ": " << rows << ", " << number;
  }
  for (const char* text : {"L['x'][0].size()[0] >= 4", "L['rest'][1] >= 4", "L['more']['k'] >= 4"}) {  // no such leaves
    Exported e(sym("s0", 4), sym("s1", 4));
    e.program.forward_arg_names = {"x", "rest_0"};
    e.program.guards.push_back(pt2::parse_guard(text));
    EXPECT_FALSE(Exported::takes(InputRules(e.program), 5, 4)) << text;
  }
}

// What no size or number is pins the program to the sizes of its export.
TEST(InputRules, AGuardThatReadsSomethingElsePinsTheSizes) {
  for (const char* text : {"L['x'] == 4", "L['y'].size()[0] == 4", "L['x'].size()[2] == 4", "L['n'].size()[0] == 4", "f(L['n'])"}) {
    Exported e(sym("s0", 4), sym("s1", 3));
    e.program.guards.push_back(pt2::parse_guard(text));
    const InputRules rules(e.program);
    for (int64_t rows = 3; rows < 6; ++rows)
      for (int64_t number = 2; number < 5; ++number) EXPECT_EQ(Exported::takes(rules, rows, number), rows == 4 && number == 3) << text;
  }
}

}  // namespace
}  // namespace keirin
