// SPDX-License-Identifier: Apache-2.0
#include "core/ir/text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "core/ir/rows.h"
#include "core/ir/verify.h"
#include "tests/support/mutants.h"

namespace keirin {
namespace {

constexpr const char* kEverything = R"(graph {
  %0 = input 0 : f32[2,3] "x \"quoted\" \\ name"
  %4 = input 1 : f32[2,3]{1,2}
  %1 = constant 7 : f32[3,3] in [-inf, 2.5, nan]
  %2 = state 8 : bf16[2,3]
  %3 = linear(%0, %1, _) : f32[2,3] unobserved
  %5 = full() {sizes=[2,3], value_d=-0, dtype=f32} : f32[2,3]{0,0} in [0, 0] @ "node 3 @ layer\nattn"
  %6 = opaque#5!(%3, _) {aten="aten::foo"} : f32[2,3]
  opaque#6!(%6)
  %7, %8, %9 = lstm(%0, %0, %0) : f32[], f32[2], i64[1] "last"
  %10 = silu(%5) : f32[2,3] body 0
  %11 = cast(%10) {dtype=bf16} : bf16[2,3]
  output %10
  output %0 alias %0
  output %11 updates %2
  body 0 {
    %0 = input 0 : f32[2,3]
    %1 = exp(%0) : f32[2,3]
    output %1
  }
}
)";

TEST(Text, ReadsAndWritesEverything) {
  Result<Graph> g = parse(kEverything);
  ASSERT_TRUE(g.ok()) << g.status().text();
  EXPECT_EQ(print(*g), kEverything);
  Result<Graph> again = parse(print(*g));
  ASSERT_TRUE(again.ok()) << again.status().text();
  EXPECT_TRUE(*again == *g);
  EXPECT_EQ(g->values[0].name, "x \"quoted\" \\ name");
  EXPECT_TRUE(std::signbit(g->ops[1].d(AttrKey::k_value_d)));
  EXPECT_EQ(g->ops[1].origin, "node 3 @ layer\nattn");
  EXPECT_EQ(g->values[1].range->low, -std::numeric_limits<double>::infinity());
}

TEST(Text, WordsAsNamesAreNumberedAsTheyAppear) {
  Result<Graph> g = parse("graph { %x = input 0 : f32[2]  %y = neg(%x) : f32[2]  output %y ; a comment\n }");
  ASSERT_TRUE(g.ok()) << g.status().text();
  EXPECT_TRUE(verify(*g).ok());
  EXPECT_EQ(g->outputs[0].value, 1u);
}

TEST(Text, RefusalsNameTheLine) {
  struct Case {
    const char* text;
    const char* what;
  };
  for (const Case& c : {Case{"graph {\n output %1\n}", "%1 is not defined"}, Case{"graph {\n\n %0 = foo()\n}", "unknown op"},
                        Case{"graph {\n %0 = input 0 : f33[2]\n}", "unknown dtype"},
                        Case{"graph {\n %0 = iota() {wat=1} : i64[3]\n}", "unknown attribute"},
                        Case{"graph {\n %0 = input 0 : f32[2]\n", "does not end"},
                        Case{"graph {\n %0 = input 0 : f32[99999999999999999999]\n}", "integer"},
                        Case{"graph { } }", "behind"}}) {
    Result<Graph> g = parse(c.text);
    ASSERT_FALSE(g.ok()) << c.text;
    EXPECT_NE(g.status().text().find(c.what), std::string::npos) << g.status().text();
    EXPECT_NE(g.status().message().where.find("line "), std::string::npos);
  }
  std::string deep = "graph ";
  for (int i = 0; i < 1000; ++i) deep += "{ body 0 ";
  EXPECT_FALSE(parse(deep).ok());
  for (const char* sizes : {"1,2000000000000000000,2,4,8", "0,9000000000000000000,2", "4000000000000000000"})
    EXPECT_NE(parse("graph {\n  %0 = input 0 : f32[" + std::string(sizes) + "]\n  output %0\n}\n")
                  .status()
                  .text()
                  .find("more bytes than can be counted"),
              std::string::npos)
        << sizes;
}

// Damaged text is refused or is some graph; never a crash, and what parses can be verified.
TEST(Text, DamageIsHarmless) {
  std::mt19937 rng(5);
  const std::string good = kEverything, letters = "{}[](),%:=!#\"0_ \n-9x";
  int parsed = 0;
  const auto judge = [&](const std::string& text) {
    Result<Graph> g = parse(text);
    if (!g.ok()) return;
    ++parsed;
    if (!verify(*g).ok()) return;
    Result<Graph> again = parse(print(*g));
    ASSERT_TRUE(again.ok() && *again == *g) << text;
  };
  test::MalformedInputs inputs;
  for (int i = 0; i < 5000; ++i) {
    std::string text = good;
    for (uint32_t k = 0, n = 1 + rng() % 3; k < n; ++k) {
      size_t at = rng() % text.size();
      if (rng() % 2)
        text[at] = letters[rng() % letters.size()];
      else
        text.erase(at, 1 + rng() % 4);
    }
    inputs.try_one(text, judge);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(parsed, 100);
}

TEST(Text, DoublesReadBackToTheSameBits) {
  for (double x : {0.1, 1e-300, 3.0, 1.0 / 3.0, std::numeric_limits<double>::infinity(), 5e-324}) {
    Graph g;
    Type type{DType::k_f32, {}, {}};
    OpId op = g.add_op(OpCode::k_full, {}, {{AttrKey::k_value_d, x}}, {type});
    g.outputs.push_back({g.ops[op].results[0], kNone, kNone});
    Result<Graph> back = parse(print(g));
    ASSERT_TRUE(back.ok()) << back.status().text();
    EXPECT_EQ(back->ops[0].d(AttrKey::k_value_d), x);
  }
}

TEST(Rows, NamesAndKeysAreTheTables) {
  EXPECT_EQ(find_row("add")->code, OpCode::k_add);
  EXPECT_EQ(find_row(OpCode::k_lstm)->num_results, 3);
  EXPECT_TRUE(find_row(OpCode::k_matmul)->is_anchor());
  EXPECT_FALSE(find_row(OpCode::k_softmax)->is_anchor());
  EXPECT_EQ(find_row(static_cast<OpCode>(99)), nullptr);
  EXPECT_EQ(find_row(static_cast<OpCode>(9999)), nullptr);
  EXPECT_EQ(attr_from_name("eps"), AttrKey::k_eps);
  EXPECT_EQ(attr_kind(AttrKey::k_eps), 'd');
  EXPECT_EQ(attr_kind(AttrKey::k_sizes), 'I');
  EXPECT_FALSE(attr_has_kind({AttrKey::k_eps, int64_t{1}}));
}

}  // namespace
}  // namespace keirin
