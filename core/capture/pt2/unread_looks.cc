// SPDX-License-Identifier: Apache-2.0
#include "core/capture/pt2/unread_looks.h"

#include <algorithm>
#include <set>
#include <string_view>

namespace keirin::pt2 {
namespace {

using Names = std::set<std::string, std::less<>>;

void add_symbols(const ExprPtr& expr, Names& to) {
  if (expr) to.insert(expr->symbols.begin(), expr->symbols.end());
}

bool is_look(const Node& node) {
  return node.target == "torch.ops.aten.item.default" || node.target == "torch.ops.aten._local_scalar_dense.default";
}

}  // namespace

void drop_unread_looks(Program& program) {
  Graph& graph = program.graph;
  if (std::none_of(graph.nodes.begin(), graph.nodes.end(), is_look)) return;
  Names read, defined;  // names; and those of looks' results
  for (const Node& node : graph.nodes) {
    for (const NamedArgument& input : node.inputs)
      for (std::string& name : input.arg.names()) read.insert(std::move(name));
    if (is_look(node))
      for (const Argument& output : node.outputs)
        for (std::string& name : output.names()) defined.insert(std::move(name));
  }
  for (const Argument& output : graph.outputs)
    for (std::string& name : output.names()) read.insert(std::move(name));
  // Symbols that sizes and other numbers are made of. What a look's own number is made of is no use of it.
  Names used;
  for (const auto& [name, meta] : graph.tensor_values)
    for (const auto* list : {&meta.sizes, &meta.strides})
      for (const SymInt& size : *list) add_symbols(size.expr, used);
  const auto add_numbers = [&](const auto& numbers) {
    for (const auto& [name, number] : numbers)
      if (!defined.contains(name)) add_symbols(number.expr, used);
  };
  add_numbers(graph.sym_int_values);
  add_numbers(graph.sym_float_values);
  add_numbers(graph.sym_bool_values);
  for (const Guard& guard : program.guards) add_symbols(guard.expr, used);
  const auto is_unread = [&](const std::string& name) {
    Names symbols;
    if (const auto number = graph.sym_int_values.find(name); number != graph.sym_int_values.end())
      add_symbols(number->second.expr, symbols);
    if (const auto number = graph.sym_float_values.find(name); number != graph.sym_float_values.end())
      add_symbols(number->second.expr, symbols);
    if (const auto number = graph.sym_bool_values.find(name); number != graph.sym_bool_values.end())
      add_symbols(number->second.expr, symbols);
    return !read.contains(name) &&
           std::none_of(symbols.begin(), symbols.end(), [&](const std::string& symbol) { return used.contains(symbol); });
  };
  std::erase_if(graph.nodes, [&](const Node& node) {
    if (!is_look(node)) return false;
    for (const Argument& output : node.outputs)
      for (const std::string& name : output.names())
        if (!is_unread(name)) return false;
    return true;
  });
}

}  // namespace keirin::pt2
