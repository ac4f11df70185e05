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

// Whether the body of a group norm of 8 groups takes its sums of each channel first.
bool sums_channels(int64_t channels, bool channels_last, int short_run_bytes) {
  const std::string type = "f16[2," + std::to_string(channels) + ",4,4]";
  const std::string n = std::to_string(channels), image = std::to_string(16 * channels), line = std::to_string(4 * channels);
  Result<Graph> g = parse("graph {\n  %x = input 0 : " + type + (channels_last ? "{" + image + ",1," + line + "," + n + "}" : "") +
                          "\n  %y = group_norm(%x) {groups=8, eps=1e-5} : " + type + "\n  output %y\n}");
  EXPECT_TRUE(g.ok()) << g.status().text();
  PassContext context;
  context.short_run_bytes = short_run_bytes;
  const Status status = passes::write_bodies(*g, context);
  EXPECT_TRUE(status.ok() && g->bodies.size() == 1) << status.text();
  return print(g->bodies[0]).find("[2,8," + std::to_string(channels / 8) + "]") != std::string::npos;
}

TEST(RunPasses, AGroupNormSumsChannelsWhereItsRunsAreShort) {
  EXPECT_TRUE(sums_channels(64, true, 32));    // runs of 16 bytes
  EXPECT_FALSE(sums_channels(128, true, 32));  // of 32
  EXPECT_FALSE(sums_channels(64, false, 32));  // rows of pixels
  EXPECT_FALSE(sums_channels(64, true, 0));    // a processor
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
  for (size_t i = 0; i < all_passes().size(); ++i) {  // 00 is the captured graph
    const std::string name(all_passes()[i].name), number = std::to_string(i + 1);
    const std::string file = std::string(2 - number.size(), '0') + number + "-" + name + ".ir";
    EXPECT_EQ(std::filesystem::exists(dir / file), name != "simplify") << name;
  }
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

// What an output is laid out like is part of what the model answers: rows that do nothing but state other strides, one or two behind each
// other, in every layout, through every pass alone and all of them.
TEST(RunPasses, OutputsKeepTheirTypes) {
  const Dims sizes{2, 3, 4};
  const Dims layouts[] = {{12, 4, 1}, {1, 2, 6}, {4, 8, 1}, {12, 1, 3}, {0, 0, 0}};
  const std::pair<OpCode, Attrs> rows[] = {
      {OpCode::k_cast, {{AttrKey::k_dtype, static_cast<int64_t>(DType::k_f32)}}},
      {OpCode::k_reshape, {{AttrKey::k_sizes, sizes}}},
      {OpCode::k_expand, {{AttrKey::k_sizes, sizes}}},
      {OpCode::k_permute, {{AttrKey::k_dims, Dims{0, 1, 2}}}},
      {OpCode::k_flip, {{AttrKey::k_dims, Dims{}}}},
      {OpCode::k_slice,
       {{AttrKey::k_dim, int64_t{1}}, {AttrKey::k_start, int64_t{0}}, {AttrKey::k_end, int64_t{3}}, {AttrKey::k_step, int64_t{1}}}},
      {OpCode::k_pad,
       {{AttrKey::k_low, Dims{0, 0, 0}}, {AttrKey::k_high, Dims{0, 0, 0}}, {AttrKey::k_value_i, int64_t{0}}, {AttrKey::k_value_d, 0.0}}},
      {OpCode::k_cat, {{AttrKey::k_dim, int64_t{0}}}},
      {OpCode::k_neg, {}}};
  int tried = 0;
  for (const Dims& of_input : layouts)
    for (const Dims& of_output : layouts)
      for (const auto& [first, first_attrs] : rows)
        for (const auto& [second, second_attrs] : rows)
          for (const bool both : {false, true}) {
            Graph g;
            const ValueId x = g.add_input({DType::k_f32, sizes, of_input}, 0);
            const ValueId y = g.ops[g.add_op(first, {x}, first_attrs, {{DType::k_f32, sizes, both ? of_input : of_output}})].results[0];
            const ValueId z = g.ops[g.add_op(second, {y}, second_attrs, {{DType::k_f32, sizes, of_output}})].results[0];
            if (both) g.outputs.push_back({y, kNone, kNone});
            g.outputs.push_back({z, kNone, kNone});
            std::vector<Type> before;
            for (const Output& o : g.outputs) before.push_back(g.type(o.value));
            for (const PassRow& row : all_passes()) {
              Graph own = g;
              PassContext context;
              ASSERT_TRUE(row.run(own, context).ok()) << row.name;
              ASSERT_EQ(own.outputs.size(), before.size());
              for (size_t o = 0; o < before.size(); ++o)
                ASSERT_EQ(own.type(own.outputs[o].value), before[o]) << row.name << "\n" << print(g) << print(own);
              ++tried;
            }
          }
  EXPECT_GT(tried, 10000);
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
