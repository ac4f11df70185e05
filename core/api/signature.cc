// SPDX-License-Identifier: Apache-2.0
//
// Paths of the leaves of a call's structure, ranges of its sizes, and the count of its operators.
#include "core/api/signature.h"

#include <algorithm>
#include <set>

#include "core/ops/aten.h"

namespace keirin {
namespace {

using InKind = pt2::InputSpec::Kind;

std::string step_text(const pt2::PathStep& step) {
  if (const auto* word = std::get_if<std::string>(&step)) return *word;
  return std::to_string(std::get<int64_t>(step));
}

// Names of the leaves below `tree`, in order.
void name_leaves(const pt2::TreeSpec& tree, const std::string& path, std::vector<std::string>& names) {
  if (tree.kind == pt2::TreeSpec::Kind::kLeaf) return names.push_back(path);
  for (size_t i = 0; i < tree.children.size(); ++i) {
    const std::string step = i < tree.keys.size() ? step_text(tree.keys[i]) : std::to_string(i);
    name_leaves(tree.children[i], path.empty() ? step : path + "." + step, names);
  }
}

// Names of the arguments' leaves; empty where the file does not say.
std::vector<std::string> argument_names(const pt2::Program& program) {
  std::vector<std::string> names;
  if (!program.has_tree_specs || program.in_spec.children.size() != 2) return names;
  const pt2::TreeSpec& args = program.in_spec.children[0];
  for (size_t i = 0; i < args.children.size(); ++i)
    name_leaves(args.children[i], i < program.forward_arg_names.size() ? program.forward_arg_names[i] : std::to_string(i), names);
  name_leaves(program.in_spec.children[1], {}, names);
  return names;
}

Dimension dimension_of(const pt2::Program& program, const pt2::SymInt& size) {
  Dimension out;
  if (size.is_literal()) {
    out.size = out.min = out.max = size.value;
    return out;
  }
  out.size = size.hint.value_or(0);
  out.free = true;
  const std::string* symbol = size.expr->bare_symbol();
  if (symbol) out.symbol = *symbol;
  else for (const std::string& each : size.expr->symbols) out.symbol += (out.symbol.empty() ? "f(" : ", ") + each;
  if (!symbol) out.symbol += ")";
  if (symbol)
    if (const auto range = program.range_constraints.find(*symbol); range != program.range_constraints.end()) {
      out.min = range->second.min.value_or(0);  // of a size 0 or more
      out.max = range->second.max.value_or(0);
    }
  return out;
}

Port tensor_port(const pt2::Program& program, const std::string& name, const std::string& value) {
  const pt2::TensorMeta& meta = program.graph.tensor_values.find(value)->second;
  Port port{name, std::string(dtype_name(meta.dtype)), {}, false, {}};
  for (const pt2::SymInt& size : meta.sizes) port.sizes.push_back(dimension_of(program, size));
  return port;
}

// "torch.ops.aten.add_.Tensor" as the table calls it: "aten::add.Tensor". What writes in place is known by its functional name.
std::string table_name(const std::string& target) {
  constexpr std::string_view kPrefix = "torch.ops.";
  if (!target.starts_with(kPrefix)) return target;
  std::string name = target.substr(kPrefix.size());
  const size_t dot = name.find('.');
  if (dot == std::string::npos) return target;
  name.replace(dot, 1, "::");
  if (name.ends_with(".default")) name.resize(name.size() - std::string_view(".default").size());
  const size_t overload = std::min(name.find('.'), name.size());
  if (overload > 0 && name[overload - 1] == '_' && !name.substr(0, overload).ends_with("__")) name.erase(overload - 1, 1);
  return name;
}

void count(const pt2::Graph& graph, const std::set<std::string_view>& known, Forecast& out) {
  for (const pt2::Node& node : graph.nodes) {
    for (const pt2::NamedArgument& input : node.inputs)
      if (const auto* inner = input.arg.get<pt2::GraphArg>()) count(*inner->graph, known, out);
    // Arithmetic on sizes, checks, and scopes around other operators: nothing that a device runs.
    if (!node.target.starts_with("torch.ops.") || node.target.ends_with(".wrap_with_set_grad_enabled") ||
        node.target.ends_with(".wrap_with_autocast") || node.target.find("sym_") != std::string::npos ||
        node.target.starts_with("torch.ops.aten._assert_"))
      continue;
    const std::string name = table_name(node.target);
    ++out.nodes;
    ++out.operators[name];
    if (known.contains(name)) ++out.known;
    else ++out.opaque[name];
  }
}

}  // namespace

Signature signature_of(const pt2::Program& program) {
  Signature out;
  const std::vector<std::string> arguments = argument_names(program);
  size_t leaf = 0;
  for (const pt2::InputSpec& input : program.inputs) {
    if (input.kind != InKind::kUserInput && input.kind != InKind::kConstantInput) continue;
    const std::string name = leaf < arguments.size() ? arguments[leaf] : std::string();
    ++leaf;
    if (input.kind != InKind::kUserInput) continue;  // the program takes one value there and no call gives it
    if (const auto* tensor = input.arg.get<pt2::TensorArg>()) {
      out.inputs.push_back(tensor_port(program, name.empty() ? tensor->name : name, tensor->name));
    } else if (const auto* number = input.arg.get<pt2::SymIntArg>(); number && number->is_name()) {
      Port port{name.empty() ? number->name : name, std::string(dtype_name(DType::k_i64)), {}, true, {}};
      if (const auto value = program.graph.sym_int_values.find(number->name); value != program.graph.sym_int_values.end())
        port.number = dimension_of(program, value->second);
      out.inputs.push_back(std::move(port));
    }
  }
  std::vector<std::string> results;
  if (program.has_tree_specs) name_leaves(program.out_spec, {}, results);
  size_t position = 0;
  for (const pt2::OutputSpec& output : program.outputs) {
    if (output.is_mutation()) continue;
    std::string name = position < results.size() ? results[position] : std::string();
    if (name.empty()) name = std::to_string(position);
    ++position;
    const auto* tensor = output.arg.get<pt2::TensorArg>();
    out.outputs.push_back(tensor ? tensor_port(program, name, tensor->name) : Port{name, {}, {}, false, {}});
  }
  return out;
}

Result<size_t> input_position(const Signature& signature, const std::string& word) {
  std::string names;
  for (size_t i = 0; i < signature.inputs.size(); ++i) {
    if (signature.inputs[i].name == word) return i;
    names += (i ? ", " : "") + signature.inputs[i].name;
  }
  for (size_t i = 0; i < signature.inputs.size(); ++i)
    if (std::to_string(i) == word) return i;
  return Status(Code::k_invalid_input,
                {"the model has no input \"" + word + "\"",
                 {},
                 "nothing was run",
                 "name one of its " + std::to_string(signature.inputs.size()) + " inputs, or its position from 0: " + names});
}

Forecast forecast_of(const pt2::Program& program) {
  const std::vector<std::string_view> names = known_aten_ops();
  Forecast out;
  count(program.graph, {names.begin(), names.end()}, out);
  return out;
}

}  // namespace keirin
