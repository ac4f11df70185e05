// SPDX-License-Identifier: Apache-2.0
//
// Where programs are cut, and what a segment is as a program, on the files of tests/data/segments, which torch.export
// wrote.
#include "core/capture/pt2/segments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/capture/pt2/check_program.h"
#include "core/capture/pt2/counted_values.h"
#include "core/capture/pt2/read_pt2.h"

namespace keirin::pt2 {
namespace {

using Strings = std::vector<std::string>;

struct Cut {
  Pt2File file;
  const Program* program = nullptr;
  Segments segments;

  Strings names() const {
    Strings out;
    for (const Segment& segment : segments.all) out.push_back(segment.name);
    return out;
  }
  const Segment& at(const std::string& name) const {
    for (const Segment& segment : segments.all)
      if (segment.name == name) return segment;
    ADD_FAILURE() << "no segment " << name;
    return segments.all.front();
  }
};

Cut cut(const std::string& name, const std::string& folder = "segments") {
  Cut out;
  Result<Pt2File> file = read_pt2(std::string(KEIRIN_SOURCE_DIR) + "/tests/data/" + folder + "/" + name + ".pt2");
  EXPECT_TRUE(file.ok()) << file.status().text();
  if (!file.ok()) return out;
  out.file = std::move(*file);
  out.program = &(*out.file.model())->program;
  out.segments = find_segments(*out.program);
  return out;
}

TEST(Segments, AModelOfKnownSizesIsOneAndNeedsNone) {
  for (const char* name : {"mlp", "tied", "lstm"}) {
    const Cut model = cut(name, "pt2");
    EXPECT_FALSE(model.segments.needed()) << name;
    EXPECT_EQ(model.segments.borders, 0) << name;
    EXPECT_EQ(model.segments.all.size(), 1u) << name;
  }
}

// As attention returns the lengths that its backward asks for.
TEST(Segments, ASizeThatAnOperatorReturnsIsKnown) {
  Cut model = cut("mlp", "pt2");
  Graph& graph = model.file.models.begin()->second.program.graph;
  graph.nodes.front().outputs.push_back({SymIntArg{"length", 0}});
  EXPECT_TRUE(find_segments(*model.program).needed()) << "nothing says what it is";
  graph.sym_int_values["length"] = SymInt{16, nullptr, {}};
  EXPECT_FALSE(find_segments(*model.program).needed());
}

TEST(Segments, ALookWhoseNumberNobodyReadsIsNone) {
  const Cut model = cut("counted_sizes", "import");
  EXPECT_FALSE(model.segments.needed());
  for (const Node& node : model.program->graph.nodes) EXPECT_EQ(node.target.find("item"), std::string::npos) << node.target;
}

// As if it had been exported from a GPU, where what it makes itself is made on the processor unless it says otherwise.
TEST(CountedValues, AreMadeOnTheDeviceUnlessReturnedOrDrawn) {
  Cut model = cut("counted", "import");
  Program& program = model.file.models.begin()->second.program;
  Graph& graph = program.graph;
  const auto device_of = [&](const std::string& name) { return graph.tensor_values.at(name).device.type; };
  count_on_device(program);
  EXPECT_EQ(device_of("tril_indices"), "cpu") << "a program of the processor";
  std::set<std::string> moved{graph.inputs.at(0).names().at(0)};
  for (const Node& node : graph.nodes)
    for (const NamedArgument& input : node.inputs)
      for (const std::string& name : input.arg.names())
        if (moved.contains(name))
          for (const Argument& output : node.outputs)
            for (const std::string& result : output.names()) moved.insert(result);
  for (const std::string& name : moved) graph.tensor_values.at(name).device = {"cuda", 0};
  count_on_device(program);
  std::map<std::string, std::set<std::string>> devices;  // by operator
  for (const Node& node : graph.nodes)
    for (const Argument& output : node.outputs)
      for (const std::string& name : output.names()) devices[node.target].insert(device_of(name));
  EXPECT_EQ(devices.at("torch.ops.aten.tril_indices.default"), std::set<std::string>{"cuda"});
  EXPECT_EQ(devices.at("torch.ops.aten.mul.Tensor"), std::set<std::string>{"cuda"});
  EXPECT_FALSE(devices.contains("torch.ops.aten._assert_tensor_metadata.default"));
  for (const Node& node : graph.nodes) EXPECT_EQ(node.target.find("_assert"), std::string::npos) << "it names the processor";
  EXPECT_EQ(devices.at("torch.ops.aten.arange.default"), (std::set<std::string>{"cpu", "cuda"})) << "one of them is returned";
  EXPECT_EQ(devices.at("torch.ops.aten.add.Tensor"), std::set<std::string>{"cpu"});
  EXPECT_EQ(devices.at("torch.ops.aten.randperm.default"), std::set<std::string>{"cpu"});
  for (const Node& node : graph.nodes)
    for (const NamedArgument& input : node.inputs)
      if (const Device* device = input.arg.get<Device>()) {
        EXPECT_EQ(device->type, device_of(node.outputs.at(0).names().at(0))) << node.target;
      }
}

TEST(Segments, ANumberThatIsAnInputNeedsThem) {
  const Cut model = cut("guarded", "pt2");
  EXPECT_TRUE(model.segments.takes_numbers);
  EXPECT_TRUE(model.segments.needed());
}

TEST(Segments, EndWhereACountComesFromData) {
  const Cut model = cut("select");
  EXPECT_TRUE(model.segments.needed());
  EXPECT_EQ(model.names(), (Strings{"linear .. gt", "squeeze_1 .. layer_norm_1", "add .. unsqueeze", "mul .. add_1"}));
  // nonzero and masked_select make counts; index by a mask has one that the file knows already.
  EXPECT_EQ(model.segments.borders, 3);
  const Segment& expert = model.at("squeeze_1 .. layer_norm_1");
  EXPECT_EQ(expert.tensors, (Strings{"nonzero", "layer_norm"}));
  EXPECT_EQ(expert.numbers, Strings());
  EXPECT_EQ(expert.targets, (Strings{"expert.0.weight", "expert.0.bias", "expert.2.weight", "expert.2.bias",
                                     "expert.3.weight", "expert.3.bias"}));
  EXPECT_EQ(expert.tensor_results, (Strings{"layer_norm_1", "squeeze_1"}));  // an index is not a float, and the last
  EXPECT_EQ(expert.varying_results, 1u);
  const Segment& first = model.at("linear .. gt");
  EXPECT_EQ(first.tensor_results, (Strings{"layer_norm", "gt"}));
  EXPECT_EQ(first.operators, 6);
  EXPECT_EQ(model.segments.operators, 22);
}

TEST(Segments, KnownCountsAreCutOnceEach) {
  EXPECT_EQ(cut("gat").segments.borders, 2);
  EXPECT_EQ(cut("gat").segments.all.size(), 3u);
  // Three masks of two counts, nms, and the last mask's three readers.
  EXPECT_EQ(cut("detector").segments.borders, 6);
}

// What fp64 picks otherwise than f32 does may not stand in one segment with what is made of it.
TEST(Segments, EndBeforeWhatPicksByOrder) {
  const Cut model = cut("detector");
  EXPECT_EQ(model.at("conv2d .. cat").tensor_results.front(), "relu_2");
  EXPECT_EQ(model.at("index .. and_1").end - model.at("index .. and_1").first, 11u);
}

TEST(Segments, BranchesAndBodiesHaveTheirOwn) {
  const Cut model = cut("branch");
  EXPECT_EQ(model.names(), (Strings{"linear .. gt", "cond/sum_1 .. gt", "cond/cond/linear .. clone",
                                    "cond/cond/linear .. add_1", "cond/sigmoid .. sub", "mul .. linear_1"}));
  EXPECT_EQ(model.segments.borders, 2);
  // What is passed down as an operand is still known as a weight.
  EXPECT_EQ(model.at("cond/cond/linear .. clone").targets, (Strings{"yes.weight", "yes.bias", "shift"}));
  EXPECT_EQ(model.at("cond/cond/linear .. clone").tensors, Strings{"add"});

  const Cut loop = cut("loop");
  const Segment& body = loop.at("while_loop/add .. add_1");
  EXPECT_EQ(body.tensors, (Strings{"arg0_1", "arg1_1"}));  // carried
  EXPECT_EQ(body.targets.size(), 6u);
  EXPECT_EQ(loop.at("while_loop/lt .. all_1").targets, Strings());
}

TEST(Segments, NumbersArePartOfWhatIsRead) {
  const Cut model = cut("sized");
  EXPECT_EQ(model.names(), (Strings{"linear .. max_1", "narrow .. mul_2"}));
  const Segment& last = model.at("narrow .. mul_2");
  EXPECT_EQ(last.numbers, Strings{"item"});
  EXPECT_EQ(last.tensors, Strings{"add"});
}

TEST(Segments, AutocastIsABorderAndIsNotCut) {
  const Cut model = cut("control", "import");
  ASSERT_GT(model.segments.borders, 0);
  for (const Segment& segment : model.segments.all)
    EXPECT_EQ(segment.name.find("autocast/"), std::string::npos) << segment.name;
}

// Every value that a segment's program names is defined in it, and the signature is that of its graph: what the reader
// checks of a file.
TEST(Segments, AreProgramsThemselves) {
  for (const char* name : {"branch", "loop", "select", "sized", "written", "gat", "detector"}) {
    const Cut model = cut(name);
    for (const Segment& segment : model.segments.all) {
      std::vector<TensorSpec> specs(segment.tensors.size(), TensorSpec{DType::k_f32, {5, 7}, {7, 1}, {}});
      const std::vector<Number> numbers(segment.numbers.size(), int64_t{5});
      for (const bool with_numbers : {true, false}) {
        const Program program = segment_program(*model.program, segment, specs, numbers, {}, with_numbers);
        const Status status = check_program(program);
        EXPECT_TRUE(status.ok()) << name << ": " << segment.name << ": " << status.text();
        EXPECT_EQ(program.inputs.size(), segment.weights.size() + segment.tensors.size());
        EXPECT_EQ(program.outputs.size(),
                  segment.tensor_results.size() + (with_numbers ? segment.number_results.size() : 0));
      }
    }
  }
}

TEST(Segments, SizesAndNumbersAreWrittenDown) {
  const Cut model = cut("sized");
  const Segment& last = model.at("narrow .. mul_2");
  const std::vector<TensorSpec> specs = {{DType::k_f32, {64, 32}, {32, 1}, {}}};
  const std::vector<Number> numbers = {int64_t{9}};
  const Named<KnownSizes> known = {{"narrow", {{9, 32}, {32, 1}}}};
  const Program program = segment_program(*model.program, last, specs, numbers, known, true);
  ASSERT_FALSE(program.graph.nodes.empty());
  bool found = false;
  for (const NamedArgument& input : program.graph.nodes.front().inputs) {
    const auto* length = input.arg.get<SymIntArg>();
    if (input.name != "length" || length == nullptr) continue;
    found = true;
    EXPECT_FALSE(length->is_name());
    EXPECT_EQ(length->value, 9);
  }
  EXPECT_TRUE(found);
  const TensorMeta& narrow = program.graph.tensor_values.at("narrow");
  ASSERT_EQ(narrow.sizes.size(), 2u);
  EXPECT_TRUE(narrow.sizes[0].is_literal());
  EXPECT_EQ(narrow.sizes[0].value, 9);
  EXPECT_FALSE(program.graph.tensor_values.at("linear_1").sizes[0].is_literal());  // nobody said it
  EXPECT_EQ(program.graph.tensor_values.at("add").sizes[0].value, 64);
}

// However a number or a tensor is handed over: in a list, alone, nested.
TEST(Arguments, OfEveryKindNameWhatTheyRead) {
  const auto names = [](auto value) {
    Argument arg;
    arg.value = std::move(value);
    return arg.names();
  };
  EXPECT_EQ(names(TensorArg{"a"}), Strings{"a"});
  EXPECT_EQ(names(TensorsArg{{"a", "b"}}), (Strings{"a", "b"}));
  EXPECT_EQ(names(OptionalTensorsArg{{"a", std::nullopt, "b"}}), (Strings{"a", "b"}));
  EXPECT_EQ(names(NestedTensorsArg{{{"a", "b"}, {}, {"c"}}}), (Strings{"a", "b", "c"}));
  EXPECT_EQ(names(SymIntArg{"n", 0}), Strings{"n"});
  EXPECT_EQ(names(SymIntArg{"", 3}), Strings());
  EXPECT_EQ(names(SymFloatArg{"n", 0}), Strings{"n"});
  EXPECT_EQ(names(SymBoolArg{"n", false}), Strings{"n"});
  EXPECT_EQ(names(std::vector<SymIntArg>{{"n", 0}, {"", 3}, {"m", 0}}), (Strings{"n", "m"}));
  EXPECT_EQ(names(int64_t{3}), Strings());
}

TEST(Segments, NumbersOfEveryKindAreWrittenDown) {
  const Cut model = cut("sized");
  Program changed = *model.program;
  const Segments segments = find_segments(changed);
  const auto found = std::find_if(segments.all.begin(), segments.all.end(), [](const Segment& s) { return s.name == "narrow .. mul_2"; });
  ASSERT_NE(found, segments.all.end());
  const Segment& last = *found;
  NamedArgument whole, real, truth, all;
  whole.name = "whole", whole.arg.value = SymIntArg{"item", 0};
  real.name = "real", real.arg.value = SymFloatArg{"item", 0};
  truth.name = "truth", truth.arg.value = SymBoolArg{"item", false};
  all.name = "all", all.arg.value = std::vector<SymIntArg>{{"item", 0}, {"", 4}};
  for (NamedArgument* each : {&whole, &real, &truth, &all}) changed.graph.nodes[last.first].inputs.push_back(*each);
  const std::vector<TensorSpec> specs = {{DType::k_f32, {64, 32}, {32, 1}, {}}};
  const std::vector<Number> numbers = {int64_t{9}};
  const Program program = segment_program(changed, last, specs, numbers, {}, true);
  std::map<std::string, const Argument*> by_name;
  for (const NamedArgument& input : program.graph.nodes.front().inputs) by_name[input.name] = &input.arg;
  for (const char* name : {"whole", "real", "truth", "all"}) {
    ASSERT_TRUE(by_name.count(name)) << name;
    EXPECT_EQ(by_name[name]->names(), Strings()) << name;
  }
  EXPECT_EQ(by_name["whole"]->get<SymIntArg>()->value, 9);
  EXPECT_EQ(by_name["real"]->get<SymFloatArg>()->value, 9);
  EXPECT_TRUE(by_name["truth"]->get<SymBoolArg>()->value);
  EXPECT_EQ(by_name["all"]->get<std::vector<SymIntArg>>()->front().value, 9);
}

}  // namespace
}  // namespace keirin::pt2
