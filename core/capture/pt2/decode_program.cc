// SPDX-License-Identifier: Apache-2.0
//
// Decoding what surrounds the graph: version, signature, ranges, guards, input and output structure.
#include "core/capture/pt2/decoder.h"
#include "core/capture/pt2/tree_spec.h"

namespace keirin::pt2 {
namespace {

constexpr int64_t kSchemaMajor = 8;

struct InputTag {
  std::string_view tag, target;  // of the spec, and of the field that names the weight
  InputSpec::Kind kind;
};
constexpr InputTag kInputTags[] = {
    {"parameter", "parameter_name", InputSpec::Kind::kParameter},
    {"buffer", "buffer_name", InputSpec::Kind::kBuffer},
    {"tensor_constant", "tensor_constant_name", InputSpec::Kind::kTensorConstant},
};

struct OutputTag {
  std::string_view tag, target;
  OutputSpec::Kind kind;
};
constexpr OutputTag kOutputTags[] = {
    {"loss_output", "", OutputSpec::Kind::kLossOutput},
    {"buffer_mutation", "buffer_name", OutputSpec::Kind::kBufferMutation},
    {"parameter_mutation", "parameter_name", OutputSpec::Kind::kParameterMutation},
    {"user_input_mutation", "user_input_name", OutputSpec::Kind::kUserInputMutation},
    {"gradient_to_parameter", "parameter_name", OutputSpec::Kind::kGradientToParameter},
    {"gradient_to_user_input", "user_input_name", OutputSpec::Kind::kGradientToUserInput},
};

constexpr const char* kTensorsOnly = "export a model whose inputs and constants are tensors";

}  // namespace

bool Decoder::schema_version(const JsonRef& ref, Program* out) {
  JsonRef at;
  if (!member(ref, "schema_version", &at)) return false;
  if (!read_member(at, "major", &out->schema_major) || !read_member(at, "minor", &out->schema_minor)) return false;
  return out->schema_major == kSchemaMajor ||
         fail(at, Code::k_version,
              "the program has schema version " + std::to_string(out->schema_major) + "." +
                  std::to_string(out->schema_minor) + ", this reader knows " + std::to_string(kSchemaMajor),
              out->schema_major < kSchemaMajor ? "save the model again with a newer torch"
                                               : "use a newer Keirin, or save with an older torch");
}

bool Decoder::constant(const JsonRef& ref, Constant* out) {
  std::string_view key;
  JsonRef at;
  if (!tag(ref, &key, &at)) return false;
  if (key == "as_none") return *out = std::monostate{}, true;
  if (key == "as_bool") return read(at, &out->emplace<bool>());
  if (key == "as_int") return read(at, &out->emplace<int64_t>());
  if (key == "as_float") return read(at, &out->emplace<double>());
  if (key == "as_string") return read(at, &out->emplace<std::string>());
  return unknown(at, "constant tag", key);
}

bool Decoder::input_spec(const JsonRef& ref, const Argument& graph_input, InputSpec* out) {
  std::string_view key;
  JsonRef at, arg, text, value;
  if (!tag(ref, &key, &at)) return false;
  if (key == "custom_obj") return fail(at, Code::k_unsupported, "the program takes a custom object", kTensorsOnly);
  if (key == "token")
    return fail(at, Code::k_unsupported, "the program takes an effect token",
                "export without effectful custom operators");
  if (key == "constant_input") {
    out->kind = InputSpec::Kind::kConstantInput;
    return read_member(at, "name", &out->target) && member(at, "value", &value) && constant(value, &out->constant);
  }
  if (!member(at, "arg", &arg)) return false;
  if (key == "user_input") {
    if (!argument(arg, &out->arg)) return false;
  } else {
    const InputTag* row = nullptr;
    for (const InputTag& r : kInputTags)
      if (r.tag == key) row = &r;
    if (row == nullptr) return unknown(at, "input kind", key);
    out->kind = row->kind;
    TensorArg& tensor = out->arg.value.emplace<TensorArg>();
    if (!member(arg, "name", &text) || !name(text, &tensor.name)) return false;
    if (!member(at, row->target, &text) || !name(text, &out->target)) return false;
    if (row->kind == InputSpec::Kind::kBuffer && !read_member(at, "persistent", &out->persistent)) return false;
  }
  return out->arg.names() == graph_input.names() ||
         fail(arg, Code::k_corrupt, "the signature and the graph name different inputs");
}

bool Decoder::output_spec(const JsonRef& ref, OutputSpec* out) {
  std::string_view key;
  JsonRef at, arg, text;
  if (!tag(ref, &key, &at)) return false;
  if (key == "token")
    return fail(at, Code::k_unsupported, "the program returns an effect token",
                "export without effectful custom operators");
  if (!member(at, "arg", &arg)) return false;
  if (key == "user_output") return argument(arg, &out->arg);
  const OutputTag* row = nullptr;
  for (const OutputTag& r : kOutputTags)
    if (r.tag == key) row = &r;
  if (row == nullptr) return unknown(at, "output kind", key);
  out->kind = row->kind;
  if (!member(arg, "name", &text) || !name(text, &out->arg.value.emplace<TensorArg>().name)) return false;
  return row->target.empty() || (member(at, row->target, &text) && name(text, &out->target));
}

bool Decoder::signature(const JsonRef& ref, Program* out) {
  JsonRef inputs, outputs;
  if (!member(ref, "input_specs", &inputs) || !want(inputs, JsonType::kArray)) return false;
  if (!member(ref, "output_specs", &outputs) || !want(outputs, JsonType::kArray)) return false;
  const Graph& g = out->graph;
  if (inputs.count() != g.inputs.size())
    return fail(inputs, Code::k_corrupt, "the signature and the graph have different numbers of inputs");
  if (outputs.count() != g.outputs.size())
    return fail(outputs, Code::k_corrupt, "the signature and the graph have different numbers of outputs");
  out->inputs.reserve(inputs.count());
  out->outputs.reserve(outputs.count());
  if (!inputs.items([&](const JsonRef& item) {
        const Argument& graph_input = g.inputs[out->inputs.size()];
        return input_spec(item, graph_input, &out->inputs.emplace_back());
      }))
    return false;
  return outputs.items([&](const JsonRef& item) {
    const Argument& graph_output = g.outputs[out->outputs.size()];
    OutputSpec& spec = out->outputs.emplace_back();
    if (!output_spec(item, &spec)) return false;
    return spec.arg.names() == graph_output.names() ||
           fail(item, Code::k_corrupt, "the signature and the graph name different outputs");
  });
}

bool Decoder::texts(const JsonRef& ref, std::vector<std::string>* out) {
  return want(ref, JsonType::kArray) &&
         ref.items([&](const JsonRef& item) { return read(item, &out->emplace_back()); });
}

bool Decoder::tree(const JsonRef& ref, std::string_view key, const JsonRef& fields, TreeSpec* out) {
  Named<std::vector<std::string>> classes;
  JsonRef text;
  if (fields.type() == JsonType::kObject && !fields.members([&](std::string_view name, const JsonRef& at) {
        JsonRef names;
        return member(at, "field_names", &names) && texts(names, &classes[std::string(name)]);
      }))
    return false;
  if (!member(ref, key, &text) || !want(text, JsonType::kString)) return false;
  Result<TreeSpec> parsed = parse_tree_spec(text.string(), classes, limits_);
  if (!parsed.ok())
    return fail(text, parsed.status().code(), parsed.status().message().what, parsed.status().message().advice);
  *out = std::move(parsed).value();
  return true;
}

// The entry of the root module tells how the caller's structured arguments flatten.
bool Decoder::call_signature(const JsonRef& ref, Program* out) {
  JsonRef calls, fields;
  bool present = false, has_fields = false;
  if (!optional(ref, "module_call_graph", &calls, &present) ||
      !optional(ref, "treespec_namedtuple_fields", &fields, &has_fields))
    return false;
  if (!present) return true;
  if (!want(calls, JsonType::kArray)) return false;
  if (!has_fields) fields = calls;  // a list: no class has names
  return calls.items([&](const JsonRef& item) {
    JsonRef call, names;
    std::string fqn;
    bool called = false, named = false;
    if (!read_member(item, "fqn", &fqn) || !optional(item, "signature", &call, &called)) return false;
    if (!fqn.empty() || !called || out->has_tree_specs) return true;
    if (!tree(call, "in_spec", fields, &out->in_spec) || !tree(call, "out_spec", fields, &out->out_spec)) return false;
    out->has_tree_specs = true;
    return optional(call, "forward_arg_names", &names, &named) && (!named || texts(names, &out->forward_arg_names));
  });
}

bool Decoder::ranges(const JsonRef& ref, Program* out) {
  JsonRef table;
  if (!member(ref, "range_constraints", &table) || !want(table, JsonType::kObject)) return false;
  uint64_t symbols = 0;
  if (!count(table, &symbols, limits_.symbols, "symbols", table.count())) return false;
  return table.members([&](std::string_view name, const JsonRef& at) {
    RangeConstraint range;
    JsonRef bound;
    bool present = false;
    if (!optional(at, "min_val", &bound, &present) || (present && !read(bound, &range.min.emplace()))) return false;
    if (!optional(at, "max_val", &bound, &present) || (present && !read(bound, &range.max.emplace()))) return false;
    if (range.min && range.max && *range.min > *range.max)
      return fail(at, Code::k_corrupt, "the range of a symbol is empty");
    out->range_constraints.emplace(std::string(name), range);
    return true;
  });
}

bool Decoder::program(const JsonRef& ref, Program* out) {
  JsonRef module, graph_at, signature_at, opsets, list;
  bool present = false;
  std::vector<std::string> names;
  if (!schema_version(ref, out) || !member(ref, "graph_module", &module)) return false;
  if (!member(module, "graph", &graph_at) || !graph(graph_at, &out->graph)) return false;
  if (!member(module, "signature", &signature_at) || !signature(signature_at, out)) return false;
  if (!call_signature(module, out) || !ranges(ref, out)) return false;
  if (!member(ref, "opset_version", &opsets) || !want(opsets, JsonType::kObject)) return false;
  if (!opsets.members(
          [&](std::string_view name, const JsonRef& at) { return read(at, &out->opset_version[std::string(name)]); }))
    return false;
  if (!optional(ref, "verifiers", &list, &present) || (present && !texts(list, &names))) return false;
  if (!names.empty()) out->dialect = names.front();
  if (!optional(ref, "torch_version", &list, &present) || (present && !read(list, &out->torch_version))) return false;
  names.clear();
  if (!optional(ref, "guards_code", &list, &present) || (present && !texts(list, &names))) return false;
  for (const std::string& text : names) {
    out->guards.push_back(parse_guard(text, limits_.expr));
    uint64_t terms = out->guards.back().expr ? out->guards.back().expr->nodes.size() : 0;
    if (!count(list, &num_expr_nodes_, limits_.expr_nodes, "terms in its sizes and guards", terms)) return false;
  }
  return true;
}

}  // namespace keirin::pt2
