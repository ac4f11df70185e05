// SPDX-License-Identifier: Apache-2.0
#include "core/eager/program/later_writes.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "core/eager/program/bind.h"
#include "core/eager/program/schema_effects.h"
#include "core/eager/program/symbol_ops.h"

namespace keirin {
namespace {

// Operators that may return a view of what they were given and do not say so.
bool may_return_view(std::string_view op) {
  return returns_operand(op) || op == "aten::_unsafe_view" || op == "aten::einsum" || op == "aten::broadcast_tensors" ||
         op == "aten::meshgrid" || op.starts_with("aten::atleast_");
}

const pt2::Argument* argument_of(const pt2::Node& node, const c10::FunctionSchema& schema, size_t parameter) {
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const pt2::NamedArgument& input = node.inputs[i];
    if (input.name.empty() ? i == parameter : input.name == schema.arguments()[parameter].name()) return &input.arg;
  }
  return nullptr;
}

std::vector<std::string> names_of(const pt2::Node& node, const c10::FunctionSchema& schema, size_t parameter) {
  const pt2::Argument* argument = argument_of(node, schema, parameter);
  return argument == nullptr ? std::vector<std::string>() : argument->names();
}

// Of what an operator writes.
std::vector<std::string> written_names(const pt2::Node& node, const c10::FunctionSchema& schema) {
  std::vector<std::string> out;
  const auto is_true = [&](size_t i) {
    const pt2::Argument* argument = i < schema.arguments().size() ? argument_of(node, schema, i) : nullptr;
    const bool* value = argument == nullptr ? nullptr : argument->get<bool>();
    return value != nullptr && *value;
  };
  for (const size_t parameter : written_arguments(schema, is_true))
    for (std::string& name : names_of(node, schema, parameter)) out.push_back(std::move(name));
  return out;
}

}  // namespace

std::vector<std::string> all_names(const pt2::Node& node) {
  std::vector<std::string> names;
  for (const pt2::NamedArgument& input : node.inputs)
    for (std::string& name : input.arg.names()) names.push_back(std::move(name));
  for (const pt2::Argument& output : node.outputs)
    for (std::string& name : output.names()) names.push_back(std::move(name));
  return names;
}

bool writes(const pt2::Node& node) {
  for (const pt2::NamedArgument& input : node.inputs)
    if (const auto* body = input.arg.get<pt2::GraphArg>())
      if (std::any_of(body->graph->nodes.begin(), body->graph->nodes.end(),
                      [](const pt2::Node& inner) { return writes(inner); }))
        return true;
  const auto op = find_operator(node.target);
  return op.ok() && !written_names(node, op->schema()).empty();
}

LaterWrites::LaterWrites(const pt2::Graph& graph, const std::set<std::string>& written_after) {
  for (size_t i = 0; i < graph.nodes.size(); ++i) read(graph.nodes[i], i);
  for (const std::string& name : written_after) last_write_[name] = std::numeric_limits<size_t>::max();
  const std::map<std::string, size_t> by_name = last_write_;
  for (const auto& [name, node] : by_name) {
    size_t& last = last_write_[root(name)];
    last = std::max(last, node);
  }
}

void LaterWrites::read(const pt2::Node& node, size_t number) {
  if (find_symbol_op(node.target) != nullptr) return;
  const auto op = find_operator(node.target);
  std::vector<std::string> shared, written;
  if (!op.ok() || may_return_view(op->schema().name())) shared = all_names(node);
  if (!op.ok()) {  // an inner graph hands on what it likes, and may write all that it gets
    if (writes(node)) written = shared;
  } else {
    const c10::FunctionSchema& schema = op->schema();
    written = written_names(node, schema);
    for (size_t i = 0; i < schema.arguments().size(); ++i)
      if (schema.arguments()[i].alias_info() != nullptr)
        for (std::string& name : names_of(node, schema, i)) shared.push_back(std::move(name));
    for (size_t i = 0; i < schema.returns().size() && i < node.outputs.size(); ++i)
      if (schema.returns()[i].alias_info() != nullptr)
        for (std::string& name : node.outputs[i].names()) shared.push_back(std::move(name));
  }
  for (const std::string& name : shared) join(shared[0], name);
  for (const std::string& name : written) last_write_[name] = number + 1;
}

std::string LaterWrites::root(std::string name) const {
  for (auto up = parent_.find(name); up != parent_.end(); up = parent_.find(name)) name = up->second;
  return name;
}

void LaterWrites::join(const std::string& a, const std::string& b) {
  const std::string x = root(a), y = root(b);
  if (x != y) parent_[y] = x;
}

bool LaterWrites::of(const std::string& value, size_t node) const {
  const auto last = last_write_.find(root(value));
  return last != last_write_.end() && last->second > node + 1;
}

bool LaterWrites::ever_of(const std::string& input) const { return last_write_.contains(root(input)); }

}  // namespace keirin
