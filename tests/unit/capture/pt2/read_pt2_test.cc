// SPDX-License-Identifier: Apache-2.0
//
// Reading the committed files of tests/data/pt2, which torch.export wrote.
#include "core/capture/pt2/read_pt2.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/unit/capture/pt2/zip_writer.h"

namespace keirin::pt2 {
namespace {

Pt2File load(const std::string& name) {
  Result<Pt2File> file = read_pt2(test::data_file(name));
  EXPECT_TRUE(file.ok()) << file.status().text();
  return file.ok() ? std::move(file).value() : Pt2File{};
}

const Model& only(const Pt2File& file) {
  static const Model kEmpty;
  Result<const Model*> m = file.model();
  EXPECT_TRUE(m.ok());
  return m.ok() ? **m : kEmpty;
}

const Node* node(const Graph& graph, const std::string& target) {
  for (const Node& n : graph.nodes)
    if (n.target == target) return &n;
  return nullptr;
}

TEST(ReadPt2, Mlp) {
  Pt2File file = load("mlp");
  EXPECT_EQ(file.extra.at("keirin_init.json"), "{\"seed\": 1}");
  const Model& m = only(file);
  EXPECT_EQ(m.program.name, "model");
  EXPECT_EQ(m.program.schema_major, 8);
  EXPECT_EQ(m.program.dialect, "TRAINING");
  EXPECT_TRUE(m.program.torch_version.starts_with("2."));
  ASSERT_EQ(m.program.graph.nodes.size(), 3u);
  const Node& first = m.program.graph.nodes[0];
  EXPECT_EQ(first.target, "torch.ops.aten.linear.default");
  EXPECT_EQ(first.module_path, "a");
  EXPECT_EQ(first.stack_trace, "File \"model.py\", line 1, in forward");
  EXPECT_EQ(first.inputs[1].name, "weight");
  EXPECT_EQ(first.inputs[1].kind, ArgumentKind::kPositional);
  EXPECT_EQ(first.inputs[1].arg.get<TensorArg>()->name, "p_a_weight");
  const TensorMeta& x = m.program.graph.tensor_values.at("x");
  EXPECT_EQ(x.dtype, DType::k_f32);
  ASSERT_NE(x.sizes[0].expr, nullptr);
  const std::string* symbol = x.sizes[0].expr->bare_symbol();
  ASSERT_NE(symbol, nullptr);
  EXPECT_EQ(x.sizes[0].hint, 2);
  EXPECT_EQ(x.sizes[1].value, 4);
  EXPECT_EQ(m.program.range_constraints.at(*symbol).min, 2);
  EXPECT_EQ(m.program.range_constraints.at(*symbol).max, 64);
  EXPECT_EQ(m.program.graph.tensor_values.at("linear").sizes[0].expr, x.sizes[0].expr);  // equal texts share one tree
  EXPECT_EQ(m.program.forward_arg_names, std::vector<std::string>{"x"});
}

TEST(ReadPt2, WeightsAreAlignedAndWhole) {
  Pt2File file = load("counter");
  const Model& m = only(file);
  const Weight& k = m.payload.constants.at("k");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(k.storage->data()) % 64, 0u);
  EXPECT_EQ(k.storage->size(), 16u);
  float values[4];
  std::memcpy(values, k.data(), sizeof values);
  EXPECT_EQ(values[3], 1.0f);
  ASSERT_EQ(m.program.inputs[0].target, "n");
  EXPECT_TRUE(m.program.inputs[0].persistent);
  EXPECT_FALSE(m.program.inputs[1].persistent);
  EXPECT_EQ(m.payload.find(m.program.inputs[0]), &m.payload.weights.at("n"));
  EXPECT_EQ(m.payload.find(m.program.inputs[1]), &k);
  EXPECT_EQ(m.payload.find(m.program.inputs[2]), nullptr);
}

TEST(ReadPt2, MutationStandsInTheSignatureOnlyAfterDecomposition) {
  Pt2File training = load("counter"), core = load("counter_core");
  EXPECT_NE(node(only(training).program.graph, "torch.ops.aten.add_.Tensor"), nullptr);
  EXPECT_EQ(only(training).program.outputs.size(), 1u);
  const Program& p = only(core).program;
  EXPECT_EQ(p.dialect, "ATEN");
  ASSERT_EQ(p.outputs.size(), 2u);
  EXPECT_EQ(p.outputs[0].kind, OutputSpec::Kind::kBufferMutation);
  EXPECT_EQ(p.outputs[0].target, "n");
  EXPECT_EQ(p.outputs[1].kind, OutputSpec::Kind::kUserOutput);
}

TEST(ReadPt2, CondCarriesItsGraphs) {
  Pt2File file = load("cond");
  const Node* cond = node(only(file).program.graph, "torch.ops.higher_order.cond");
  ASSERT_NE(cond, nullptr);
  ASSERT_EQ(cond->inputs.size(), 4u);
  const GraphArg* yes = cond->inputs[1].arg.get<GraphArg>();
  const GraphArg* no = cond->inputs[2].arg.get<GraphArg>();
  ASSERT_TRUE(yes != nullptr && no != nullptr);
  EXPECT_EQ(yes->graph->nodes[0].target, "torch.ops.aten.add.Tensor");
  EXPECT_EQ(no->graph->nodes[0].target, "torch.ops.aten.mul.Tensor");
  EXPECT_EQ(cond->inputs[3].arg.get<TensorsArg>()->names.size(), 1u);
}

TEST(ReadPt2, StructuredInputsAndConstants) {
  Pt2File file = load("structured");
  const Program& p = only(file).program;
  ASSERT_TRUE(p.has_tree_specs);
  EXPECT_EQ(p.in_spec.num_leaves(), 5u);
  const TreeSpec& d = p.in_spec.children[0].children[0];
  EXPECT_EQ(d.kind, TreeSpec::Kind::kDict);
  EXPECT_EQ(std::get<std::string>(d.keys[1]), "b");
  const TreeSpec& kwargs = p.in_spec.children[1];
  EXPECT_EQ(std::get<std::string>(kwargs.keys[0]), "scale");
  EXPECT_EQ(p.out_spec.children[1].kind, TreeSpec::Kind::kList);
  ASSERT_EQ(p.inputs.size(), 5u);
  EXPECT_EQ(p.inputs[3].kind, InputSpec::Kind::kConstantInput);
  EXPECT_EQ(p.inputs[3].target, "flag");
  EXPECT_EQ(std::get<bool>(p.inputs[3].constant), false);
  EXPECT_EQ(std::get<int64_t>(p.inputs[4].constant), 5);
  EXPECT_TRUE(p.outputs[2].arg.is<NoneArg>());
}

TEST(ReadPt2, NamedTuplesAndOrderedDicts) {
  Pt2File file = load("named");
  const TreeSpec& out = only(file).program.out_spec;
  EXPECT_EQ(out.kind, TreeSpec::Kind::kNamedTuple);
  EXPECT_EQ(out.type, "Pair");
  ASSERT_EQ(out.keys.size(), 2u);
  EXPECT_EQ(std::get<std::string>(out.keys[1]), "q");
  EXPECT_EQ(out.children[1].kind, TreeSpec::Kind::kOrderedDict);
  EXPECT_FALSE(out.has_other());
}

TEST(ReadPt2, LstmStaysWhole) {
  Pt2File file = load("lstm");
  const Node* lstm = node(only(file).program.graph, "torch.ops.aten.lstm.input");
  ASSERT_NE(lstm, nullptr);
  EXPECT_EQ(lstm->outputs.size(), 3u);
  EXPECT_EQ(lstm->module_path, "l");
  EXPECT_TRUE(lstm->inputs[2].arg.is<TensorsArg>());
  EXPECT_EQ(*lstm->inputs[3].arg.get<bool>(), true);
  EXPECT_EQ(only(file).payload.weights.size(), 4u);
}

TEST(ReadPt2, TyingAndViewsAreKept) {
  Pt2File file = load("tied");
  const Payload& payload = only(file).payload;
  const Weight &e = payload.weights.at("e.weight"), &o = payload.weights.at("o.weight");
  EXPECT_EQ(e.storage, o.storage);
  EXPECT_EQ(e.data(), o.data());
  const Weight &tail = payload.weights.at("tail"), &turned = payload.weights.at("turned");
  EXPECT_EQ(tail.storage, turned.storage);
  EXPECT_EQ(tail.storage_offset, 4);
  EXPECT_EQ(turned.strides, (std::vector<int64_t>{1, 4}));
  float first = 0;
  std::memcpy(&first, tail.data(), sizeof first);
  EXPECT_EQ(first, 4.0f);
}

TEST(ReadPt2, FakeWeightsComeLaterAndAreNotTied) {
  Pt2File file = load("fake");
  const Payload& payload = only(file).payload;
  ASSERT_EQ(payload.weights.size(), 2u);
  for (const auto& [name, w] : payload.weights) {
    EXPECT_TRUE(w.is_pending()) << name;
    EXPECT_EQ(w.data(), nullptr);
  }
}

TEST(ReadPt2, GuardsAndSymbolicInputs) {
  Pt2File file = load("guarded");
  const Program& p = only(file).program;
  ASSERT_GT(p.guards.size(), 2u);
  for (const Guard& g : p.guards) EXPECT_NE(g.expr, nullptr) << g.text;
  ASSERT_EQ(p.inputs.size(), 3u);
  ASSERT_TRUE(p.inputs[2].arg.is<SymIntArg>());
  EXPECT_EQ(p.graph.sym_int_values.at(p.inputs[2].arg.get<SymIntArg>()->name).hint, 2);
  // The guards hold for the sizes that the model was exported with.
  SymbolValues hints = {{"L['x'].size()[0]", 4}, {"L['x'].size()[1]", 8}, {"L['y'].size()[0]", 6}, {"L['n']", 2}};
  for (const Guard& g : p.guards) {
    Result<bool> holds = evaluate_bool(*g.expr, hints);
    ASSERT_TRUE(holds.ok()) << g.text << "\n" << holds.status().text();
    EXPECT_TRUE(*holds) << g.text;
  }
}

TEST(ReadPt2, UnbackedSymbolsHaveNoHint) {
  Pt2File file = load("unbacked");
  const Program& p = only(file).program;
  ASSERT_EQ(p.range_constraints.count("u0"), 1u);
  EXPECT_EQ(p.range_constraints.at("u0").max, 99);
  bool seen = false;
  for (const auto& [name, value] : p.graph.sym_int_values) seen |= value.expr != nullptr && !value.hint;
  EXPECT_TRUE(seen);
}

TEST(ReadPt2, MemoryReadsLikeAFile) {
  std::string bytes = test::file_text(test::data_file("mlp"));
  Result<Pt2File> file = read_pt2(std::as_bytes(std::span(bytes)), "bytes");
  ASSERT_TRUE(file.ok()) << file.status().text();
  EXPECT_EQ(file->path, "bytes");
  EXPECT_EQ(only(*file).payload.weights.size(), 4u);
}

TEST(ReadPt2, ADeviceHasAnIndexOrNone) {
  std::vector<test::ZipItem> items = test::unzip(test::file_text(test::data_file("mlp")));
  test::ZipItem* model = test::find(items, "models/model.json");
  ASSERT_NE(model, nullptr);
  const std::string from = "\"device\": {\"type\": \"cpu\", \"index\": null}", before = model->content;
  const size_t at = before.find(from);
  ASSERT_NE(at, std::string::npos);
  for (const int64_t index : {int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{0x7FFF}, int64_t{0x8000}}) {
    std::string to = from;
    model->content = before;
    model->content.replace(at, from.size(), to.replace(to.find("null"), 4, std::to_string(index)));
    const std::string bytes = test::write_zip(items);
    const Result<Pt2File> file = read_pt2(std::as_bytes(std::span(bytes)));
    ASSERT_EQ(file.ok(), index >= 0 && index <= 0x7FFF) << index << (file.ok() ? "" : file.status().text());
    const std::string told = file.ok() ? "a device index is " + std::to_string(index) : file.status().text();
    EXPECT_NE(told.find("a device index is " + std::to_string(index)), std::string::npos) << told;
  }
}

// Sizes x strides x offset x dtype x length of the record: taken if and only if the last byte of the furthest element, found by
// walking over all of them, lies in the record.
TEST(ReadPt2, AWeightLiesInItsRecordToTheLastElement) {
  struct View {
    std::vector<int64_t> sizes, strides;
  };
  const View views[] = {{{}, {}},
                        {{1}, {1}},
                        {{1}, {1000}},
                        {{5}, {1}},
                        {{5}, {3}},
                        {{5}, {0}},
                        {{2, 3}, {3, 1}},
                        {{2, 3}, {1, 2}},
                        {{2, 3}, {5, 1}},
                        {{3, 2}, {0, 1}},
                        {{0}, {1}},
                        {{4, 0}, {7, 1}},
                        {{2, 2, 2}, {4, 2, 1}},
                        {{2, 1, 3}, {3, 99, 1}}};
  const struct {
    int number;  // in the file
    int64_t bytes;
  } dtypes[] = {{1, 1}, {3, 2}, {7, 4}, {8, 8}};
  std::vector<test::ZipItem> items = test::unzip(test::file_text(test::data_file("tied")));
  test::ZipItem* config = test::find(items, "model_weights_config.json");
  test::ZipItem* record = test::find(items, "data/weights/weight_1");
  ASSERT_TRUE(config != nullptr && record != nullptr);
  const size_t tail = config->content.find("\"tail\""), end = config->content.find("\"turned\"");
  ASSERT_TRUE(tail != std::string::npos && end != std::string::npos);
  const std::string head = config->content.substr(0, tail), rest = config->content.substr(end);
  const auto list = [](const std::vector<int64_t>& values) {
    std::string text;
    for (int64_t v : values) text += (text.empty() ? "{\"as_int\": " : ", {\"as_int\": ") + std::to_string(v) + "}";
    return "[" + text + "]";
  };
  int taken = 0, refused = 0;
  for (const View& view : views)
    for (int64_t offset : {0, 1, 4})
      for (const auto& dtype : dtypes) {
        int64_t furthest = offset, count = 1;
        for (size_t d = 0; d < view.sizes.size(); ++d) count *= view.sizes[d], furthest += (view.sizes[d] - 1) * view.strides[d];
        const int64_t need = count == 0 ? 0 : (furthest + 1) * dtype.bytes;
        config->content =
            head + "\"tail\": {\"path_name\": \"weight_2\", \"is_param\": false, \"use_pickle\": false, \"tensor_meta\": {\"dtype\": " +
            std::to_string(dtype.number) + ", \"sizes\": " + list(view.sizes) + ", \"requires_grad\": false, " +
            "\"device\": {\"type\": \"cpu\", \"index\": null}, \"strides\": " + list(view.strides) +
            ", \"storage_offset\": {\"as_int\": " + std::to_string(offset) + "}, \"layout\": 7}}, " + rest;
        for (int64_t length : {need - dtype.bytes, need - 1, need, need + 1, need + dtype.bytes}) {
          if (length <= 0) continue;  // a record without bytes is a weight that comes later
          std::vector<test::ZipItem> written = items;
          written.push_back({record->name.substr(0, record->name.size() - 1) + "2", std::string(static_cast<size_t>(length), 'w')});
          const std::string bytes = test::write_zip(written);
          const Result<Pt2File> file = read_pt2(std::as_bytes(std::span(bytes)));
          ASSERT_EQ(file.ok(), length >= need) << length << " bytes for\n" << config->content << (file.ok() ? "" : file.status().text());
          (file.ok() ? taken : refused) += 1;
          if (!file.ok()) continue;
          const Weight& w = only(*file).payload.weights.at("tail");
          ASSERT_EQ(w.num_elements(), count);
          if (count == 0) continue;
          ASSERT_LE(w.data() + need - offset * dtype.bytes, w.storage->data() + w.storage->size());
        }
      }
  EXPECT_GT(taken, 300);
  EXPECT_GT(refused, 200);
}

TEST(ReadPt2, HoldsSeveralModels) {
  std::vector<test::ZipItem> items = test::unzip(test::file_text(test::data_file("mlp")));
  for (const auto& [from, to] : {std::pair{"models/model.json", "mlp/models/other.json"},
                                 {"/model_weights_config.json", "mlp/data/weights/other_weights_config.json"},
                                 {"/model_constants_config.json", "mlp/data/constants/other_constants_config.json"}}) {
    test::ZipItem copy = *test::find(items, from);
    copy.name = to;
    items.push_back(copy);
  }
  std::string bytes = test::write_zip(items);
  Result<Pt2File> file = read_pt2(std::as_bytes(std::span(bytes)));
  ASSERT_TRUE(file.ok()) << file.status().text();
  EXPECT_EQ(file->models.size(), 2u);
  EXPECT_FALSE(file->model().ok());
  EXPECT_TRUE(file->model("other").ok());
}

}  // namespace
}  // namespace keirin::pt2
