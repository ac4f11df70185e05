// SPDX-License-Identifier: Apache-2.0
//
// Recipes, inference, region bytes and the reference interpreter together, against what LibTorch answered
// (tests/data/ops). A case fails if the call stays opaque, if a type differs from eager's, strides included, or if a
// value does.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/ir/text.h"
#include "core/ir/verify.h"
#include "core/ops/aten.h"
#include "tests/unit/reference/region_runner.h"

namespace keirin {
namespace {

using nlohmann::json;
using testing::HostTensor;
using testing::ReferencePlugin;

double number(const json& v) {
  if (v.is_string()) return v == "nan" ? NAN : v == "inf" ? INFINITY : -INFINITY;
  return v.get<double>();
}

Type type_of(const json& t) {
  Dims sizes = t.at("sizes").get<Dims>();
  Dims strides = t.contains("strides") ? t.at("strides").get<Dims>() : contiguous_strides(sizes);
  return Type{*dtype_from_name(t.at("dtype").get<std::string>()), sizes, strides};
}

std::vector<double> data_of(const json& t) {
  std::vector<double> out;
  for (const json& v : t.at("data")) out.push_back(number(v));
  return out;
}

AtenArg arg_of(const json& a, Builder& b) {
  if (a.contains("tensor")) return {AtenArg::Value{a["tensor"].get<ValueId>(), false}};
  if (a.contains("wrapped")) {
    DType d = *dtype_from_name(a["dtype"].get<std::string>());
    auto v = is_float(d)
                 ? b.full(number(a["wrapped"]), d, {})
                 : b.full_i(a["wrapped"].is_boolean() ? a["wrapped"].get<bool>() : a["wrapped"].get<int64_t>(), d, {});
    return {AtenArg::Value{v.value(), true}};
  }
  if (a.contains("tensors")) {
    AtenArg::Values values;
    for (const json& v : a["tensors"]) values.push_back(v.is_null() ? kNone : v.get<ValueId>());
    return {values};
  }
  if (a.contains("bool")) return {a["bool"].get<bool>()};
  if (a.contains("int")) return {a["int"].get<int64_t>()};
  if (a.contains("double")) return {number(a["double"])};
  if (a.contains("string")) return {a["string"].get<std::string>()};
  if (a.contains("ints")) return {a["ints"].get<Dims>()};
  if (a.contains("bools")) return {a["bools"].get<std::vector<bool>>()};
  if (a.contains("doubles")) return {a["doubles"].get<std::vector<double>>()};
  if (a.contains("dtype")) return {*dtype_from_name(a["dtype"].get<std::string>())};
  return {AtenArg::None{}};
}

struct Lowered {
  Graph graph;
  std::vector<HostTensor> inputs;
};

void lower(const json& c, Lowered& out) {
  for (const json& t : c["inputs"]) {
    uint32_t n = static_cast<uint32_t>(out.inputs.size());
    out.graph.add_input(type_of(t), n);
    out.inputs.push_back(HostTensor::of(type_of(t), data_of(t)));
  }
  Builder builder(out.graph);
  std::vector<AtenArg> args;
  std::vector<std::string> names;
  for (const json& a : c["args"]) {
    args.push_back(arg_of(a, builder));
    names.push_back(a["name"].get<std::string>());
  }
  std::string op = c["op"].get<std::string>(), why;
  auto results = lower_aten(builder, {op, &args, &names, nullptr}, &why);
  ASSERT_TRUE(results.ok()) << results.status().text();
  ASSERT_TRUE(results->has_value()) << "stays opaque: " << why;
  ASSERT_LE((*results)->size(), c["results"].size());
  for (ValueId v : **results) out.graph.outputs.push_back({v, kNone, kNone});
}

// What a computation in the dtype may lose against LibTorch's own rounding.
double tolerance(DType d) {
  switch (d) {
    case DType::k_bf16:
      return 1.0 / 128;
    case DType::k_f16:
      return 1.0 / 1024;
    case DType::k_f32:
      return 4e-6;
    case DType::k_f64:
      return 4e-7;  // the golden numbers carry eight digits
    default:
      return 0;
  }
}

bool same_strides(const Type& a, const Type& b) {
  if (a.num_elements() == 0) return true;
  for (size_t i = 0; i < a.sizes.size(); ++i)
    if (a.sizes[i] != 1 && a.strides[i] != b.strides[i]) return false;
  return true;
}

// `exact`: a 16-bit result is the very one, which shows a number that was rounded too early; the golden text has eight digits. Only
// a product has it: LibTorch adds numbers that it has rounded, and divides by their reciprocal.
void compare(const json& want, const HostTensor& got, bool strides, bool exact) {
  const Type expected = type_of(want);
  EXPECT_EQ(dtype_name(got.type.dtype), dtype_name(expected.dtype));
  ASSERT_EQ(got.type.sizes, expected.sizes);
  EXPECT_TRUE(!strides || same_strides(got.type, expected)) << "strides " << ::testing::PrintToString(got.type.strides)
                                                            << " want " << ::testing::PrintToString(expected.strides);
  std::vector<double> a = got.values(), b = data_of(want);
  ASSERT_EQ(a.size(), b.size());
  double scale = 0;
  for (double v : b) scale = std::isfinite(v) ? std::max(scale, std::abs(v)) : scale;
  for (size_t k = 0; k < a.size(); ++k) {
    if (std::isnan(b[k]) || std::isinf(b[k])) {
      EXPECT_TRUE(std::isnan(b[k]) ? std::isnan(a[k]) : a[k] == b[k])
          << "element " << k << " is " << a[k] << ", want " << b[k];
    } else {
      const bool is_exact = exact && dtype_bytes(expected.dtype) == 2;
      const double allowed = is_exact ? std::abs(b[k]) * 1e-6 : tolerance(expected.dtype) * std::max(scale, 1e-3);
      EXPECT_LE(std::abs(a[k] - b[k]), allowed)
          << "element " << k << " is " << a[k] << ", want " << b[k];
    }
  }
}

// The bodies of the one composite of a graph, if that is all the graph is.
std::vector<Graph> only_bodies(const Graph& graph) {
  std::vector<Graph> out;
  if (graph.ops.size() != 1 || graph.outputs.size() != 1) return out;
  for (const bool by_channel : {false, true}) {
    if (by_channel && graph.ops[0].code != OpCode::k_group_norm) continue;
    auto body = decompose(graph, graph.ops[0], by_channel);
    if (body.ok()) out.push_back(*body);
  }
  return out;
}

class Golden : public ::testing::TestWithParam<const char*> {};

TEST_P(Golden, MatchesLibTorch) {
  std::ifstream file(std::string(KEIRIN_SOURCE_DIR) + "/tests/data/ops/" + GetParam() + ".json");
  const json cases = json::parse(file);
  ASSERT_FALSE(cases.empty());
  size_t number_of_case = 0, bodies = 0;
  for (const json& c : cases) {
    SCOPED_TRACE("case " + std::to_string(number_of_case++) + " " + c["op"].get<std::string>());
    Lowered l;
    lower(c, l);
    if (HasFatalFailure()) return;
    std::vector<size_t> computed;
    std::vector<Output> outputs;
    for (size_t k = 0; k < l.graph.outputs.size(); ++k)
      if (l.graph.outputs[k].value != kNone) computed.push_back(k), outputs.push_back(l.graph.outputs[k]);
    l.graph.outputs = outputs;
    EXPECT_TRUE(verify(l.graph).ok()) << verify(l.graph).text();
    auto results = ReferencePlugin::get().run(l.graph, l.inputs);
    ASSERT_TRUE(results.ok()) << results.status().text() << "\n" << print(l.graph);
    for (size_t k = 0; k < computed.size(); ++k) {
      SCOPED_TRACE("result " + std::to_string(computed[k]) + " of\n" + print(l.graph));
      compare(c["results"][computed[k]], results.value()[k], c.value("strides", true), c["op"] == "aten::mul.Tensor");
    }
    for (const Graph& body : only_bodies(l.graph)) {
      SCOPED_TRACE("its body\n" + print(body));
      ++bodies;
      std::vector<HostTensor> operands;
      for (ValueId v : l.graph.ops[0].operands)
        if (v != kNone) operands.push_back(l.inputs[l.graph.values[v].index]);
      auto written = ReferencePlugin::get().run(body, operands);
      ASSERT_TRUE(written.ok()) << written.status().text();
      compare(c["results"][0], written.value()[0], false, false);
    }
  }
  std::cout << GetParam() << ": " << cases.size() << " cases, " << bodies << " bodies\n";
}

INSTANTIATE_TEST_SUITE_P(Families, Golden,
                         ::testing::Values("pointwise", "reduce", "view", "index", "factory", "contraction", "layer", "backward"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace keirin
