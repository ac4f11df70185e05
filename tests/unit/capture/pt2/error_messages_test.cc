// SPDX-License-Identifier: Apache-2.0
//
// The words of the refusals that a user can meet, each compared with its file in tests/errors/pt2. Set
// KEIRIN_UPDATE_GOLDEN=1 to write the files anew after a wanted change.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "core/capture/pt2/read_pt2.h"
#include "tests/unit/capture/pt2/zip_writer.h"

namespace keirin::pt2 {
namespace {

using test::ZipItem;
using Items = std::vector<ZipItem>;

// A change of a good file: in the record whose name ends like `record`, the first `from` becomes `to`.
struct Case {
  const char *name, *file, *record, *from, *to;
};

constexpr const char* kModel = "models/model.json";
constexpr const char* kWeights = "model_weights_config.json";

constexpr Case kCases[] = {
    {"schema_too_new", "mlp", kModel, "\"major\": 8", "\"major\": 9"},
    {"schema_too_old", "mlp", kModel, "\"major\": 8", "\"major\": 7"},
    {"field_missing", "mlp", kModel, "\"graph_module\"", "\"graph_modulo\""},
    {"wrong_type", "mlp", kModel, "\"target\": \"torch.ops.aten.relu.default\"", "\"target\": 7"},
    {"unknown_argument_tag", "mlp", kModel, "\"arg\": {\"as_tensor\"", "\"arg\": {\"as_quaternion\""},
    {"two_tags", "mlp", kModel, "\"arg\": {\"as_tensor\"", "\"arg\": {\"as_int\": 1, \"as_tensor\""},
    {"unknown_dtype", "mlp", kModel, "\"dtype\": 7", "\"dtype\": 99"},
    {"unsupported_dtype", "mlp", kModel, "\"dtype\": 7", "\"dtype\": 31"},
    {"sparse_layout", "mlp", kModel, "\"layout\": 7", "\"layout\": 2"},
    {"negative_size", "mlp", kModel, "{\"as_int\": 3}", "{\"as_int\": -3}"},
    {"strides_differ", "mlp", kModel, "\"strides\": [{\"as_int\": 4}, {\"as_int\": 1}]",
     "\"strides\": [{\"as_int\": 4}]"},
    {"value_undefined", "mlp", kModel, "\"arg\": {\"as_tensor\": {\"name\": \"linear\"}}",
     "\"arg\": {\"as_tensor\": {\"name\": \"nowhere\"}}"},
    {"value_twice", "mlp", kModel, "\"outputs\": [{\"as_tensor\": {\"name\": \"relu\"}}]",
     "\"outputs\": [{\"as_tensor\": {\"name\": \"x\"}}]"},
    {"unknown_function", "mlp", kModel, "Symbol('s77', positive=True, integer=True)",
     "OpaqueUnaryFn_sinh(Symbol('s77'))"},
    {"damaged_expression", "mlp", kModel, "Symbol('s77', positive=True, integer=True)", "__import__('os')"},
    {"empty_range", "mlp", kModel, "\"max_val\": 64", "\"max_val\": 1"},
    {"duplicate_key", "mlp", kModel, "\"opset_version\"", "\"schema_version\""},
    {"signature_differs", "mlp", kModel, "{\"user_input\": {\"arg\": {\"as_tensor\": {\"name\": \"x\"}}}}",
     "{\"user_input\": {\"arg\": {\"as_tensor\": {\"name\": \"relu\"}}}}"},
    {"token_input", "mlp", kModel, "{\"user_input\": {", "{\"token\": {"},
    {"output_of_no_kind", "mlp", kModel, "{\"user_output\": {", "{\"nobodys_output\": {"},
    {"custom_object", "mlp", kModel, "{\"user_input\": {", "{\"custom_obj\": {"},
    {"mutation_of_nothing", "counter_core", kModel, "\"buffer_name\": \"n\"}}, {\"user_output\"",
     "\"buffer_name\": \"m\"}}, {\"user_output\""},
    {"tree_differs", "mlp", kModel,
     "\\\"type\\\": null, \\\"context\\\": null, \\\"children_spec\\\": []}]}, {\\\"type\\\": \\\"builtins.dict",
     "\\\"type\\\": \\\"builtins.tuple\\\", \\\"context\\\": null, \\\"children_spec\\\": []}]}, {\\\"type\\\": "
     "\\\"builtins.dict"},
    {"not_json", "mlp", kModel, "\"graph_module\": {", "\"graph_module\": NaN{"},
    {"weight_pickled", "mlp", kWeights, "\"use_pickle\": false", "\"use_pickle\": true"},
    {"weight_too_large", "mlp", kWeights, "\"as_int\": 3", "\"as_int\": 300"},
    {"weight_record_missing", "mlp", kWeights, "weight_0", "weight_9"},
    {"weight_missing", "mlp", kWeights, "\"a.bias\"", "\"a.bios\""},
    {"weight_overflow", "mlp", kWeights, "[{\"as_int\": 3}, {\"as_int\": 4}]",
     "[{\"as_int\": 4611686018427387904}, {\"as_int\": 4}]"},
    {"custom_object_constant", "counter", "model_constants_config.json", "tensor_0", "custom_obj_0"},
    {"archive_version", "mlp", "archive_version", "0", "3"},
    {"big_endian", "mlp", "byteorder", "little", "big"},
    {"wrong_format", "mlp", "archive_format", "pt2", "pt3"},
};

std::string message(const std::string& bytes) {
  Result<Pt2File> file = read_pt2(std::as_bytes(std::span(bytes)), "m.pt2");
  return file.ok() ? "ok\n" : file.status().text() + "\n";
}

void compare(const std::string& name, const std::string& got) {
  std::string path = std::string(KEIRIN_SOURCE_DIR) + "/tests/errors/pt2/" + name + ".txt";
  if (std::getenv("KEIRIN_UPDATE_GOLDEN") != nullptr) std::ofstream(path, std::ios::binary) << got;
  EXPECT_EQ(got, test::file_text(path)) << path;
  size_t lines = static_cast<size_t>(std::count(got.begin(), got.end(), '\n'));
  EXPECT_EQ(lines, 4u) << "a message has four parts: " << got;
}

class ErrorMessage : public testing::TestWithParam<Case> {};

TEST_P(ErrorMessage, IsGolden) {
  const Case& c = GetParam();
  Items items = test::unzip(test::file_text(test::data_file(c.file)));
  ZipItem* record = test::find(items, c.record);
  ASSERT_NE(record, nullptr);
  size_t at = record->content.find(c.from);
  ASSERT_NE(at, std::string::npos) << c.from;
  record->content.replace(at, std::string(c.from).size(), c.to);
  compare(c.name, message(test::write_zip(items)));
}

INSTANTIATE_TEST_SUITE_P(Pt2, ErrorMessage, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ErrorMessages, OfOtherFiles) {
  compare("not_a_zip", message("hello"));
  compare("older_layout", message(test::write_zip({{"serialized_exported_program.json", "{}"}, {"version", "6"}})));
  compare("torchscript", message(test::write_zip({{"m/constants.pkl", "x"}, {"m/data.pkl", "x"}})));
  compare("torch_save", message(test::write_zip({{"m/data.pkl", "x"}, {"m/version", "3"}})));
  compare("other_zip", message(test::write_zip({{"m/readme", "x"}})));
  Items aoti = {{"m/archive_format", "pt2"},
                {"m/archive_version", "0"},
                {"m/byteorder", "little"},
                {"m/.data/version", "6\n"},
                {"m/data/aotinductor/model/x.so", "x"}};
  compare("aotinductor", message(test::write_zip(aoti)));
  aoti.pop_back();
  compare("no_program", message(test::write_zip(aoti)));
  std::string bytes = test::file_text(test::data_file("mlp"));
  Limits limits;
  limits.nodes = 2;
  Result<Pt2File> file = read_pt2(std::as_bytes(std::span(bytes)), "m.pt2", limits);
  ASSERT_FALSE(file.ok());
  compare("too_many_nodes", file.status().text() + "\n");
}

TEST(ErrorMessages, OfOlderWeights) {
  Items items = test::unzip(test::file_text(test::data_file("mlp")));
  test::find(items, kWeights)->name = "mlp/data/weights/model.pt";
  compare("weights_pickled_layout", message(test::write_zip(items)));
}

TEST(ErrorMessages, OfAMissingFile) {
  Result<Pt2File> file = read_pt2(std::string("no/such/file.pt2"));
  ASSERT_FALSE(file.ok());
  compare("no_file", file.status().text() + "\n");
}

// Every number of the file format: a dtype of ours is read, one of torch's alone is refused by its name, and no other has a meaning.
TEST(ErrorMessages, OfEveryDtypeNumber) {
  const std::map<int, std::string> others = {
      {0, "unknown"}, {9, "complex32"}, {31, "float8_e4m3fnuz"}, {32, "float8_e5m2fnuz"}, {33, "float8_e8m0fnu"}};
  const std::set<int> ours = {1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 28, 29, 30, 34, 35};
  for (int number = 0; number < 40; ++number) {
    Items items = test::unzip(test::file_text(test::data_file("mlp")));
    std::string& model = test::find(items, kModel)->content;
    const std::string from = "\"dtype\": 7";
    model.replace(model.find(from), from.size(), "\"dtype\": " + std::to_string(number));
    const std::string got = message(test::write_zip(items));
    const auto other = others.find(number);
    EXPECT_EQ(got.find("tensors of dtype") != std::string::npos, other != others.end()) << got;
    if (other != others.end()) {
      EXPECT_NE(got.find("tensors of dtype " + other->second + " are not supported"), std::string::npos) << got;
    } else {
      EXPECT_EQ(got.find("dtype number") != std::string::npos, !ours.count(number)) << number << ": " << got;
    }
  }
}

// An update is of something that the program has: a buffer by its name, an input by its own.
TEST(ErrorMessages, OfUpdatesOfNothing) {
  const auto updating = [](const std::string& kind) {
    Items items = test::unzip(test::file_text(test::data_file("counter_core")));
    std::string& model = test::find(items, kModel)->content;
    const std::string from = "{\"buffer_mutation\": {\"arg\": {\"name\": \"add\"}, \"buffer_name\": \"n\"}}";
    EXPECT_NE(model.find(from), std::string::npos);
    model.replace(model.find(from), from.size(), kind);
    return message(test::write_zip(items));
  };
  EXPECT_EQ(updating("{\"user_input_mutation\": {\"arg\": {\"name\": \"add\"}, \"user_input_name\": \"x\"}}"), "ok\n");
  EXPECT_NE(updating("{\"user_input_mutation\": {\"arg\": {\"name\": \"add\"}, \"user_input_name\": \"n\"}}"), "ok\n");
  EXPECT_EQ(updating("{\"buffer_mutation\": {\"arg\": {\"name\": \"add\"}, \"buffer_name\": \"k\"}}"), "ok\n");
  EXPECT_NE(updating("{\"buffer_mutation\": {\"arg\": {\"name\": \"add\"}, \"buffer_name\": \"x\"}}"), "ok\n");
}

}  // namespace
}  // namespace keirin::pt2
