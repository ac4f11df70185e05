// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "core/ir/bytes.h"
#include "core/ir/text.h"
#include "core/passes/check.h"
#include "core/passes/pass.h"
#include "tests/unit/ir/random_graph.h"

namespace keirin {
namespace {

Graph small_graph() {
  Result<Graph> g = parse(R"(graph {
    %x = input 0 : bf16[2,4]
    %d = exp(%x) : bf16[2,4]
    %s = softmax(%x) {dim=1} : bf16[2,4]
    output %s
  })");
  EXPECT_TRUE(g.ok()) << g.status().text();
  return *g;
}

TEST(RunPasses, DumpsTimesAndBodies) {
  auto dir = std::filesystem::temp_directory_path() / "keirin_run_passes_test";
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  Graph g = small_graph();
  PassContext context;
  context.dump_dir = dir.string();
  context.disabled = {"simplify"};
  context.run_twice = true;
  Status status = run_passes(g, context);
  ASSERT_TRUE(status.ok()) << status.text();
  EXPECT_TRUE(std::filesystem::exists(dir / "01-normalise.ir"));
  EXPECT_FALSE(std::filesystem::exists(dir / "03-simplify.ir"));
  EXPECT_TRUE(std::filesystem::exists(dir / "11-write_bodies.ir"));
  EXPECT_EQ(context.times.size(), all_passes().size() - 1);
  EXPECT_EQ(context.times[0].ops_before, 2u);
  EXPECT_EQ(context.times[0].ops_after, 1u);
  EXPECT_EQ(g.bodies.size(), 1u);
  EXPECT_TRUE(write_region(g).ok());
  std::filesystem::remove_all(dir);
}

TEST(RunPasses, StopsAfterAPassAndRefusesUnknownNames) {
  Graph g = small_graph();
  PassContext context;
  context.stop_after = "infer";
  ASSERT_TRUE(run_passes(g, context).ok());
  EXPECT_EQ(context.times.size(), 2u);
  context.stop_after = "inferr";
  EXPECT_EQ(run_passes(g, context).code(), Code::k_invalid_input);
  context.stop_after.clear();
  context.disabled = {"nothing"};
  EXPECT_EQ(run_passes(g, context).code(), Code::k_invalid_input);
}

TEST(RunPasses, MalformedGraphsAreRefusedFirst) {
  Graph g = small_graph();
  g.values[g.ops[1].results[0]].type.sizes[0] = 3;  // a shape that softmax does not give
  PassContext context;
  EXPECT_FALSE(run_passes(g, context).ok());
  EXPECT_TRUE(context.times.empty());
}

TEST(RunPasses, RandomGraphsStayWellFormedUnderEveryNumerics) {
  for (uint32_t seed = 0; seed < 90; ++seed) {
    Graph g = testing::random_graph(seed, {.num_ops = 40});
    PassContext context;
    context.numerics = static_cast<Numerics>(seed % 3);
    context.run_twice = true;
    Status status = run_passes(g, context);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.text();
    EXPECT_EQ(g.outputs.size(), 4u);
    EXPECT_EQ(g.inputs.size(), 3u);
  }
}

// Budget: 20 us a node. Doubling the graph must not quadruple the time.
TEST(RunPasses, TimeGrowsWithTheGraph) {
  auto seconds = [](int num_ops) {
    Graph g = testing::random_graph(7, {.num_ops = num_ops, .opaque = 0.02});
    PassContext context;
    auto start = std::chrono::steady_clock::now();
    Status status = run_passes(g, context);
    EXPECT_TRUE(status.ok()) << status.text();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  double small = seconds(2000), large = seconds(16000);
  RecordProperty("us_per_op", std::to_string(large / 16000 * 1e6));
  EXPECT_LT(large, small * 8 * 4);
}

}  // namespace
}  // namespace keirin
