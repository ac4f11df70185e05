// SPDX-License-Identifier: Apache-2.0
//
// Each pass on the cases of tests/golden/<pass>.ir: the graph before, and exactly what comes out. The runner's rule that a
// second run changes nothing is checked with each. KEIRIN_UPDATE_GOLDEN=1 writes what came out instead; read the diff.
//
//   ; case NAME [strict|fast|channels_last|merge]...
//   graph { ... }
//   ; after
//   graph { ... }
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "core/ir/text.h"
#include "core/passes/check.h"
#include "core/passes/pass.h"
#include "tests/unit/passes/fake_evaluator.h"

namespace keirin {
namespace {

struct Case {
  std::string head, before, after;
};

std::vector<Case> read_cases(const std::string& path) {
  std::ifstream file(path);
  std::vector<Case> cases;
  std::string line;
  bool after = false;
  while (std::getline(file, line)) {
    if (line.rfind("; case ", 0) == 0) {
      cases.push_back({line.substr(7), "", ""});
      after = false;
    } else if (line == "; after") {
      after = true;
    } else if (!cases.empty()) {
      (after ? cases.back().after : cases.back().before) += line + "\n";
    }
  }
  return cases;
}

// What the constants of golden files hold, by index: small numbers, a causal bool mask of 4x4, ones, zeros.
testing::FakeEvaluator constants() {
  testing::FakeEvaluator e;
  e.table.resize(8);
  e.table[0] = {1, 2, 3, 4};
  e.table[1] = {0.5, 0.25, 2, 1};
  for (int i = 0; i < 16; ++i) e.table[2].push_back(i % 4 <= i / 4);
  e.table[3] = std::vector<double>(16, 1);
  e.table[4] = std::vector<double>(16, 0);
  for (int i = 0; i < 16; ++i) e.table[5].push_back(i);
  return e;
}

std::string run_case(const PassRow& row, const Case& c) {
  testing::FakeEvaluator evaluator = constants();
  PassContext context;
  context.evaluator = &evaluator;
  std::istringstream words(c.head);
  for (std::string word; words >> word;) {
    if (word == "strict") context.numerics = Numerics::kStrict;
    if (word == "fast") context.numerics = Numerics::kFast;
    if (word == "channels_last") context.channels_last = true;
    if (word == "merge") context.extra_weight_bytes = 1 << 20;
  }
  Result<Graph> g = parse(c.before);
  if (!g.ok()) return g.status().text();
  if (Status s = check(*g); !s.ok()) return "before: " + s.text();
  Status status = row.run(*g, context);
  if (status.ok()) status = check(*g);
  if (!status.ok()) return "after: " + status.text();
  Graph once = *g;
  status = row.run(*g, context);
  if (!status.ok() || !(*g == once)) return "a second run changed the graph:\n" + print(once) + print(*g);
  return print(once);
}

class GoldenPass : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenPass, Cases) {
  const PassRow& row = *find_pass(GetParam());
  const std::string path = std::string(KEIRIN_SOURCE_DIR) + "/tests/golden/" + GetParam() + ".ir";
  std::vector<Case> cases = read_cases(path);
  ASSERT_FALSE(cases.empty()) << path << " has no case";
  std::string updated = "; SPDX-License-Identifier: Apache-2.0\n";
  for (const Case& c : cases) {
    std::string out = run_case(row, c);
    updated += "\n; case " + c.head + "\n" + c.before.substr(0, c.before.find_last_of('}') + 1) + "\n; after\n" + out;
    if (!std::getenv("KEIRIN_UPDATE_GOLDEN")) {
      std::string want = c.after.substr(0, c.after.find_last_of('}') + 1) + "\n";
      EXPECT_EQ(out, want) << "case " << c.head;
    }
  }
  if (std::getenv("KEIRIN_UPDATE_GOLDEN")) std::ofstream(path) << updated;
}

std::vector<std::string> names() {
  std::vector<std::string> list;
  for (const PassRow& row : all_passes()) list.emplace_back(row.name);
  return list;
}

INSTANTIATE_TEST_SUITE_P(All, GoldenPass, ::testing::ValuesIn(names()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace keirin
