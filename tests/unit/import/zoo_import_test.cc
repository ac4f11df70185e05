// SPDX-License-Identifier: Apache-2.0
//
// Every small model of the zoo: runs verbatim, becomes a Graph, and the Graph computes what the verbatim run computes.
// Prints the share of opaque ops with their names, which is what a recipe is still missing for.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>

#include "core/capture/import/importer.h"
#include "core/eager/rows/graph_calls.h"
#include "tests/unit/eager/loaded_model.h"

namespace keirin {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> zoo() {
  std::vector<std::string> names;
  const fs::path folder = fs::path(KEIRIN_SOURCE_DIR) / "bench/zoo/models/small";
  if (!fs::exists(folder)) return names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".pt2") names.push_back(entry.path().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class Zoo : public ::testing::TestWithParam<std::string> {};

double scale_of(const TensorRef& tensor, TensorServices& services) {
  const TensorRef wide = *services.allocate({DType::k_f64, testing::sizes_of(*tensor), {}, {}});
  EXPECT_TRUE(services.copy(wide, tensor).ok());
  double scale = 0;
  for (int64_t i = 0; i < testing::num_elements(*wide); ++i)
    scale = std::max(scale, std::abs(static_cast<double*>(wide->data())[i]));
  return scale;
}

void print_opaque(const std::string& name, const Captured& captured) {
  std::map<std::string, int> counts;
  for (const Op& op : captured.graph.ops)
    if (op.code == OpCode::kOpaque) ++counts[op.s(AttrKey::k_aten) + " (" + captured.whys.at(op.call) + ")"];
  std::printf("%s: %zu ops, opaque among them:\n", name.c_str(), captured.graph.ops.size());
  for (const auto& [aten, count] : counts) std::printf("    %d x %s\n", count, aten.c_str());
}

TEST_P(Zoo, GraphEqualsVerbatim) {
  const auto services = make_tensor_services();
  auto file = pt2::read_pt2(GetParam());
  ASSERT_TRUE(file.ok()) << file.status().text();
  const pt2::Model& model = **file->model();
  auto rules = read_initial_values(*file);
  ASSERT_TRUE(rules.ok()) << rules.status().text();
  auto weights = load_weights(model, *rules, *services);
  ASSERT_TRUE(weights.ok()) << weights.status().text();
  auto inputs = draw_inputs(model.program, *rules, *services);
  ASSERT_TRUE(inputs.ok()) << inputs.status().text();
  auto state = weights->clone(*services);  // what the verbatim run may write
  ASSERT_TRUE(state.ok()) << state.status().text();
  auto program = EagerProgram::make(model.program, *state, {});
  ASSERT_TRUE(program.ok()) << program.status().text();
  auto wanted = (*program)->run(*inputs);
  ASSERT_TRUE(wanted.ok()) << wanted.status().text();

  std::vector<TensorSpec> specs;
  for (const TensorRef& input : *inputs) specs.push_back({input->dtype(), testing::sizes_of(*input), {}, {}});
  auto captured = import_graph(model.program, *weights, specs);
  const std::string name = fs::path(GetParam()).stem().string();
  if (!captured.ok()) {
    std::printf("%s: stays eager: %s\n", name.c_str(), captured.status().text().c_str());
    EXPECT_EQ(captured.status().code(), Code::k_unsupported) << captured.status().text();
    return;
  }
  print_opaque(name, *captured);
  std::vector<TensorRef> constants;
  for (size_t i = 0; i < weights->size(); ++i) constants.push_back((*weights)[i].tensor);
  auto replay = EagerGraph::make(captured->graph, captured->calls, constants);
  ASSERT_TRUE(replay.ok()) << replay.status().text();
  auto got = (*replay)->run(*inputs);
  ASSERT_TRUE(got.ok()) << got.status().text();
  auto referee = evaluate(captured->graph, captured->calls, *inputs, constants, {{}, DType::k_f64});
  ASSERT_TRUE(referee.ok()) << referee.status().text();
  ASSERT_EQ(got->size(), wanted->size());
  for (size_t i = 0; i < got->size(); ++i) {
    const TensorRef &a = (*got)[i], &b = (*wanted)[i], &c = (*referee)[i];
    ASSERT_EQ(a->dtype(), b->dtype()) << "output " << i;
    ASSERT_EQ(testing::sizes_of(*a), testing::sizes_of(*b)) << "output " << i;
    const double scale = scale_of(b, *services);
    EXPECT_GT(scale, 0) << "output " << i << " is all zero: nothing is compared";
    const double tolerance = b->dtype() == DType::k_bf16 || b->dtype() == DType::k_f16 ? 5e-2 : 1e-4;
    const double difference = testing::largest_difference(*services, a, b),
                 error = testing::largest_difference(*services, c, b);
    std::printf("    output %zu: scale %.3g, graph against verbatim %.3g, referee against verbatim %.3g\n", i, scale,
                difference, error);
    EXPECT_LE(difference, tolerance * scale) << "output " << i;
    EXPECT_LE(error, tolerance * scale) << "output " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Small, Zoo, ::testing::ValuesIn(zoo()),
                         [](const auto& info) { return fs::path(info.param).stem().string(); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Zoo);

}  // namespace
}  // namespace keirin
