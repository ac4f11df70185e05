// SPDX-License-Identifier: Apache-2.0
//
// The functional Graph of each model against Python's outputs: in its own dtypes, state included, and in fp64. And what
// the importer must refuse, with its reason.
#include "core/capture/import/importer.h"

#include <cmath>

#include "core/eager/program/program.h"
#include "core/eager/rows/graph_calls.h"
#include "core/ops/aten.h"
#include "tests/unit/eager/loaded_model.h"

namespace keirin {
namespace {

using testing::LoadedModel;

std::vector<TensorSpec> specs_of(const std::vector<TensorRef>& inputs) {
  std::vector<TensorSpec> specs;
  for (const TensorRef& input : inputs)
    specs.push_back({input->dtype(), testing::sizes_of(*input), {}, input->device()});
  return specs;
}

std::vector<TensorRef> constants_of(const WeightTable& weights) {
  std::vector<TensorRef> constants;
  for (size_t i = 0; i < weights.size(); ++i) constants.push_back(weights[i].tensor);
  return constants;
}

Result<Captured> capture(const LoadedModel& loaded) {
  return import_graph(loaded.model->program, loaded.weights, specs_of(loaded.inputs()));
}

TEST(Importer, ASizeThatAnOperatorReturnsIsANumber) {
  LoadedModel loaded("mlp");
  pt2::Program program = loaded.model->program;
  const auto import = [&] { return import_graph(program, loaded.weights, specs_of(loaded.inputs())); };
  program.graph.nodes.front().outputs.push_back({pt2::SymIntArg{"length", 0}});
  const auto unknown = import();
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.status().text().find("a number that depends on data"), std::string::npos) << unknown.status().text();
  program.graph.sym_int_values["length"] = pt2::SymInt{16, nullptr, {}};
  const auto known = import();
  ASSERT_TRUE(known.ok()) << known.status().text();
  EXPECT_EQ(known->graph.ops.size(), capture(loaded)->graph.ops.size());
}

class Imported : public ::testing::TestWithParam<const char*> {};

TEST_P(Imported, ReplayEqualsPython) {
  LoadedModel loaded(GetParam());
  auto captured = capture(loaded);
  ASSERT_TRUE(captured.ok()) << captured.status().text();
  auto replay = EagerGraph::make(captured->graph, captured->calls, constants_of(loaded.weights));
  ASSERT_TRUE(replay.ok()) << replay.status().text();
  const std::vector<TensorRef> inputs = loaded.inputs();
  int call = 0;
  for (; loaded.expected(call, 0) != nullptr; ++call) {
    auto outputs = (*replay)->run(inputs);
    ASSERT_TRUE(outputs.ok()) << outputs.status().text();
    for (size_t i = 0; i < outputs->size(); ++i) {
      EXPECT_TRUE(loaded.same_bits((*outputs)[i], loaded.expected(call, i))) << "call " << call << " output " << i;
    }
    EXPECT_EQ(loaded.expected(call, outputs->size()), nullptr);
  }
  EXPECT_GT(call, 0);
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_TRUE(loaded.same_bits(inputs[i], loaded.golden.at("after_" + std::to_string(i))))
        << "input " << i << " after the calls";
  }
}

TEST_P(Imported, RefereeIsCloseAndWritesNothing) {
  LoadedModel loaded(GetParam());
  auto captured = capture(loaded);
  ASSERT_TRUE(captured.ok()) << captured.status().text();
  const std::vector<TensorRef> inputs = loaded.inputs();
  for (int round = 0; round < 2; ++round) {  // the second round would see what the first one wrote
    auto outputs = evaluate(captured->graph, captured->calls, inputs, constants_of(loaded.weights), {{}, DType::k_f64});
    ASSERT_TRUE(outputs.ok()) << outputs.status().text();
    for (size_t i = 0; loaded.expected(0, i) != nullptr; ++i) {
      const TensorRef wanted = loaded.expected(0, i), got = outputs->at(i);
      EXPECT_EQ(got->dtype(), is_float(wanted->dtype()) ? DType::k_f64 : wanted->dtype());
      ASSERT_EQ(testing::sizes_of(*got), testing::sizes_of(*wanted));
      const double tolerance = wanted->dtype() == DType::k_bf16 ? 0.3 : 1e-4;
      EXPECT_LT(loaded.largest_difference(got, wanted), tolerance) << "output " << i << " round " << round;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Imported,
                         ::testing::Values("mlp", "in_place", "counter", "counter_functional", "exchange_functional", "kept",
                                           "computed_sizes", "writes_input", "opaque", "scope", "dynamic", "conv", "train_norm", "tied",
                                           "opaque_in_place", "swap", "inside", "parts", "counted_sizes", "windows"),
                         [](const auto& info) { return std::string(info.param); });

std::vector<std::string> opaque_in(const Captured& captured) {
  std::vector<std::string> names;
  for (const Op& op : captured.graph.ops)
    if (op.code == OpCode::kOpaque) names.push_back(op.s(AttrKey::k_aten));
  return names;
}

TEST(Importer, KnowsWhatStaysOpaque) {
  auto captured = capture(LoadedModel("opaque"));
  ASSERT_TRUE(captured.ok());
  EXPECT_EQ(opaque_in(*captured), (std::vector<std::string>{"aten::linalg_qr", "aten::cummax", "aten::linalg_det"}));
  // Taken apart as LibTorch does it, but for the one that has a part without a row.
  captured = capture(LoadedModel("parts"));
  ASSERT_TRUE(captured.ok());
  EXPECT_EQ(opaque_in(*captured), std::vector<std::string>{"aten::kl_div"});
  EXPECT_EQ(captured->whys,
            std::vector<std::string>{"not in the operator table, and its part aten::xlogy.Tensor: not in the operator table"});
  for (const char* model : {"mlp", "in_place", "counter", "dynamic", "conv", "tied", "counted_sizes", "windows"}) {
    auto other = capture(LoadedModel(model));
    ASSERT_TRUE(other.ok());
    EXPECT_EQ(opaque_in(*other), std::vector<std::string>()) << model;
  }
}

// transformers' own operator, by its name in Python and by that of our stand-in, and LibTorch's, which has a kernel of its own on devices.
TEST(Importer, ProductsOfExpertsRowsAreRowsOfTheTable) {
  for (const char* model : {"grouped_mm", "grouped_product"})
    for (Device device : {Device{Device::kCpu, 0}, Device{Device::kCuda, 0}}) {
      const LoadedModel loaded(model, "packages");
      const auto captured = import_graph(loaded.model->program, loaded.weights, specs_of(loaded.inputs()), device);
      ASSERT_TRUE(captured.ok()) << captured.status().text();
      size_t products = 0;
      for (const Op& op : captured->graph.ops) products += op.code == OpCode::k_grouped_matmul;
      const bool own_kernel = model == std::string("grouped_product") && device.kind == Device::kCuda;
      EXPECT_EQ(products, own_kernel ? 0u : 2u) << model;
      const std::string why = "LibTorch's kernel for devices computes only what its data asks for";
      EXPECT_EQ(captured->whys, own_kernel ? (std::vector<std::string>{why, why}) : std::vector<std::string>{}) << model;
    }
  EXPECT_TRUE(knows_aten_op("transformers::grouped_mm_fallback"));
}

// A value knows nothing of the storage around it: the run says whether there is any.
TEST(Importer, AnExplicitOffsetIsReadOnlyWhereTheOperandIsItsWholeStorage) {
  LoadedModel loaded("strided");
  const auto program = EagerProgram::make(loaded.model->program, loaded.weights, {});
  ASSERT_TRUE(program.ok());
  ObservedRun seen;
  ASSERT_TRUE((*program)->observe(loaded.inputs(), seen).ok());
  const auto captured = import_graph(loaded.model->program, loaded.weights, specs_of(loaded.inputs()), {}, &seen);
  EXPECT_TRUE(captured.ok()) << captured.status().text();
  const auto unseen = capture(loaded);
  ASSERT_FALSE(unseen.ok()) << "without a run nobody knows";
  EXPECT_NE(unseen.status().text().find("beyond its operand"), std::string::npos) << unseen.status().text();
}

// What eager's libraries do not round is rounded by nobody.
TEST(Importer, ProductsThatAreWholeStaySo) {
  const LoadedModel loaded("conv");
  const auto whole = [&](const ObservedRun& seen) {
    const auto captured = import_graph(loaded.model->program, loaded.weights, specs_of(loaded.inputs()), {}, &seen);
    std::vector<std::string> nodes;
    if (!captured.ok()) return nodes;
    for (const Op& op : captured->graph.ops)
      if (op.b(AttrKey::k_ieee)) nodes.push_back(op.origin.str().substr(0, op.origin.str().find(' ')));
    return nodes;
  };
  ObservedRun seen;
  EXPECT_EQ(whole(seen), std::vector<std::string>());
  seen.whole_products = {"conv2d", "linear/1", "relu_"};
  EXPECT_EQ(whole(seen), std::vector<std::string>{"conv2d"}) << "a product has one result, and relu is none";
}

TEST(Importer, StateAndUpdatesAreDeclared) {
  LoadedModel loaded("counter");
  auto captured = capture(loaded);
  ASSERT_TRUE(captured.ok());
  const Graph& graph = captured->graph;
  size_t updates = 0;
  for (const Output& output : graph.outputs) {
    if (output.updates == kNone) continue;
    ++updates;
    EXPECT_EQ(graph.values[output.updates].kind, ValueKind::kState);
  }
  EXPECT_EQ(updates, 2u);
  EXPECT_EQ(graph.outputs[0].updates, kNone);
}

TEST(Importer, TiedNamesAreOneValue) {
  auto captured = capture(LoadedModel("tied"));
  ASSERT_TRUE(captured.ok());
  size_t constants = 0;
  for (const Value& value : captured->graph.values) constants += value.kind == ValueKind::kConstant;
  EXPECT_EQ(constants, 1u);
}

TEST(Importer, ShapesAreThoseOfTheCall) {
  LoadedModel loaded("dynamic");
  auto captured = import_graph(loaded.model->program, loaded.weights,
                               {{DType::k_f32, {9, 5}, {}, {}}, {DType::k_f32, {9, 5}, {}, {}}});
  ASSERT_TRUE(captured.ok()) << captured.status().text();
  EXPECT_EQ(captured->graph.type(captured->graph.outputs[0].value).sizes, Dims{45});
  EXPECT_EQ(captured->graph.type(captured->graph.outputs[2].value).sizes, Dims{18});
}

TEST(Importer, RefusesControlFlowWithItsReason) {
  auto captured = capture(LoadedModel("control"));
  ASSERT_FALSE(captured.ok());
  EXPECT_EQ(captured.status().code(), Code::k_unsupported);
  EXPECT_NE(captured.status().text().find("autocast is on inside the model"), std::string::npos)
      << captured.status().text();
}

TEST(Importer, RefusesAWriteThroughAnUnknownView) {
  auto captured = capture(LoadedModel("unknown_view"));
  EXPECT_EQ(captured.status().text(),
            "unsupported: a view of unknown form is written\n"
            "  node add_ (torch.ops.aten.add_.Tensor)\n"
            "  the model runs eagerly\n"
            "  write to the tensor itself, or to a copy");
}

TEST(Importer, NamesTheInputThatAnOutputIs) {
  auto captured = capture(LoadedModel("swap"));
  ASSERT_TRUE(captured.ok()) << captured.status().text();
  const Graph& graph = captured->graph;
  EXPECT_EQ(graph.outputs[0].alias_of, graph.inputs[0]);
  EXPECT_EQ(graph.outputs[2].alias_of, kNone);
  EXPECT_EQ(graph.outputs.size(), 6u);  // three of the user's, two buffers, one input
}

TEST(Importer, ChecksInputsLikeACall) {
  LoadedModel loaded("mlp");
  auto captured = import_graph(loaded.model->program, loaded.weights, {{DType::k_f32, {1, 8}, {}, {}}});
  EXPECT_EQ(captured.status().code(), Code::k_invalid_input);
}

TEST(PreparedCall, RunsOneOp) {
  LoadedModel loaded("mlp");
  auto captured = capture(loaded);
  ASSERT_TRUE(captured.ok());
  const Graph& graph = captured->graph;
  const GraphCalls calls(captured->calls);
  std::vector<TensorRef> values(graph.values.size());
  for (ValueId v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].kind == ValueKind::kInput) values[v] = loaded.inputs()[graph.values[v].index];
    if (graph.values[v].kind == ValueKind::kConstant) values[v] = loaded.weights[graph.values[v].index].tensor;
  }
  for (OpId id = 0; id < graph.ops.size(); ++id) {
    auto prepared = calls.prepare(graph, id);
    ASSERT_TRUE(prepared.ok()) << prepared.status().text();
    std::vector<TensorRef> operands, results;
    for (const ValueId v : graph.ops[id].operands) operands.push_back(v == kNone ? nullptr : values[v]);
    const Status status = (*prepared)->run(operands, results);
    ASSERT_TRUE(status.ok()) << status.text();
    for (size_t i = 0; i < results.size(); ++i) values[graph.ops[id].results[i]] = results[i];
  }
  // Recorded on another processor, whose library may take a sum in another order.
  EXPECT_LT(loaded.largest_difference(values[graph.outputs[0].value], loaded.expected(0, 0)), 1e-6);
}

}  // namespace
}  // namespace keirin
