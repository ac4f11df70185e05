// SPDX-License-Identifier: Apache-2.0
//
// Decoding graphs and nodes. Inner graphs of higher-order operators arrive here again through their argument.
#include "core/capture/pt2/decoder.h"

namespace keirin::pt2 {
namespace {

// nn_module_stack is "key,path,type;key,path,type"; the path of the last entry is where the node came from. Types may
// hold commas and semicolons only inside brackets.
std::string module_path(std::string_view stack) {
  std::string_view parts[3] = {};
  size_t part = 0, start = 0;
  int depth = 0;
  std::string_view path;
  for (size_t i = 0; i <= stack.size(); ++i) {
    char c = i < stack.size() ? stack[i] : ';';
    if (c == '[' || c == '(')
      ++depth;
    else if (c == ']' || c == ')')
      --depth;
    else if ((c == ',' || c == ';') && (depth <= 0 || i == stack.size())) {
      if (part < 3) parts[part] = stack.substr(start, i - start);
      ++part;
      start = i + 1;
      if (c == ';') {
        if (part >= 3) path = parts[1];
        part = 0;
      }
    }
  }
  return std::string(path);
}

}  // namespace

bool Decoder::arguments(const JsonRef& ref, std::vector<Argument>* out) {
  if (!want(ref, JsonType::kArray)) return false;
  out->reserve(ref.count());
  return ref.items([&](const JsonRef& item) { return argument(item, &out->emplace_back()); });
}

bool Decoder::metadata(const JsonRef& ref, Node* out) {
  JsonRef stack, trace;
  bool has_stack = false, has_trace = false;
  if (!optional(ref, "nn_module_stack", &stack, &has_stack) || !optional(ref, "stack_trace", &trace, &has_trace))
    return false;
  if (has_stack) {
    if (!want(stack, JsonType::kString)) return false;
    out->module_path = module_path(stack.string());
  }
  return !has_trace || read(trace, &out->stack_trace);
}

bool Decoder::node(const JsonRef& ref, Node* out) {
  JsonRef target, inputs, outputs, meta, single, label;
  bool present = false;
  out->json_byte = ref.byte();
  if (!member(ref, "target", &target) || !name(target, &out->target)) return false;
  if (!member(ref, "inputs", &inputs) || !want(inputs, JsonType::kArray)) return false;
  out->inputs.reserve(inputs.count());
  bool done = inputs.items([&](const JsonRef& item) {
    NamedArgument& input = out->inputs.emplace_back();
    JsonRef arg, kind;
    bool has_kind = false;
    int64_t number = 0;
    if (!read_member(item, "name", &input.name) || !member(item, "arg", &arg) || !argument(arg, &input.arg))
      return false;
    if (!optional(item, "kind", &kind, &has_kind)) return false;
    if (!has_kind) return true;
    if (!read(kind, &number)) return false;
    if (number < 0 || number > 2) return unknown(kind, "argument kind number", std::to_string(number));
    input.kind = static_cast<ArgumentKind>(number);
    return true;
  });
  if (!done || !member(ref, "outputs", &outputs) || !arguments(outputs, &out->outputs)) return false;
  if (!optional(ref, "metadata", &meta, &present) || (present && !metadata(meta, out))) return false;
  if (!optional(ref, "is_hop_single_tensor_return", &single, &present)) return false;
  if (present && !read(single, &out->is_hop_single_tensor_return.emplace())) return false;
  return optional(ref, "name", &label, &present) && (!present || read(label, &out->name));
}

template <class T>
bool Decoder::values(const JsonRef& ref, std::string_view key, Named<T>* out,
                     bool (Decoder::*read_one)(const JsonRef&, T*)) {
  JsonRef table;
  bool present = false;
  if (!optional(ref, key, &table, &present)) return false;
  if (!present) return true;
  if (!want(table, JsonType::kObject) || !count(table, &num_values_, limits_.values, "values", table.count()))
    return false;
  return table.members([&](std::string_view name, const JsonRef& at) {
    return (this->*read_one)(at, &out->emplace_hint(out->end(), std::string(name), T{})->second);
  });
}

bool Decoder::graph(const JsonRef& ref, Graph* out) {
  JsonRef inputs, outputs, nodes, objects, single;
  bool present = false;
  if (graph_depth_ > limits_.graph_depth)
    return fail(ref, Code::k_corrupt, "inner graphs are nested deeper than " + std::to_string(limits_.graph_depth));
  ++graph_depth_;
  if (!optional(ref, "custom_obj_values", &objects, &present)) return false;
  if (present && !want(objects, JsonType::kObject)) return false;
  if (present && objects.count() > 0)
    return fail(objects, Code::k_unsupported, "the program uses custom objects",
                "export a model whose inputs and constants are tensors");
  if (!values(ref, "tensor_values", &out->tensor_values, &Decoder::tensor_meta)) return false;
  if (!values(ref, "sym_int_values", &out->sym_int_values, &Decoder::sym_int)) return false;
  if (!values(ref, "sym_float_values", &out->sym_float_values, &Decoder::sym_float)) return false;
  if (!values(ref, "sym_bool_values", &out->sym_bool_values, &Decoder::sym_bool)) return false;
  if (!member(ref, "inputs", &inputs) || !arguments(inputs, &out->inputs)) return false;
  if (!member(ref, "nodes", &nodes) || !want(nodes, JsonType::kArray)) return false;
  if (!count(nodes, &num_nodes_, limits_.nodes, "nodes", nodes.count())) return false;
  out->nodes.reserve(nodes.count());
  if (!nodes.items([&](const JsonRef& item) { return node(item, &out->nodes.emplace_back()); })) return false;
  if (!member(ref, "outputs", &outputs) || !arguments(outputs, &out->outputs)) return false;
  if (!optional(ref, "is_single_tensor_return", &single, &present)) return false;
  if (present && !read(single, &out->is_single_tensor_return)) return false;
  --graph_depth_;
  return true;
}

}  // namespace keirin::pt2
