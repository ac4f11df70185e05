// SPDX-License-Identifier: Apache-2.0
//
// The dispatcher of the recipes: finds one by name, and undoes what it appended if the call stays opaque.
#include "core/ops/aten.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "core/ops/lowering.h"

namespace keirin {
namespace {

using Table = std::unordered_map<std::string_view, Recipe>;

const Table& table() {
  static const Table* const recipes = [] {
    auto* all = new Table;
    for (auto family : {pointwise_recipes(), activation_recipes(), reduce_recipes(), view_recipes(), join_recipes(),
                        index_recipes(), factory_recipes(), contraction_recipes(), network_recipes(), backward_recipes()})
      for (const RecipeRow& row : family) all->emplace(row.op, row.recipe);
    return all;
  }();
  return *recipes;
}

// A carried dtype anywhere among the operands or results is nothing for the table.
bool computes(const Builder& builder, const AtenCall& call) {
  auto ok = [&](ValueId v) { return v == kNone || dtype_class(builder.type(v).dtype) != DTypeClass::x; };
  for (const AtenArg& arg : *call.args) {
    if (const auto* one = std::get_if<AtenArg::Value>(&arg.value); one && !ok(one->id)) return false;
    if (const auto* many = std::get_if<AtenArg::Values>(&arg.value);
        many && !std::all_of(many->begin(), many->end(), ok))
      return false;
  }
  return true;
}

void undo(Graph& graph, size_t values, size_t ops) {
  graph.values.resize(values);
  graph.ops.resize(ops);
}

}  // namespace

Result<std::optional<ValueIds>> lower_aten(Builder& builder, const AtenCall& call, std::string* why_opaque) {
  auto opaque = [&](std::string why) {
    if (why_opaque != nullptr) *why_opaque = std::move(why);
    return std::optional<ValueIds>();
  };
  auto it = table().find(call.op);
  if (it == table().end()) return opaque("not in the operator table");
  if (!computes(builder, call)) return opaque("an operand's dtype is carried, not computed in");
  Graph& graph = builder.graph();
  const size_t values = graph.values.size(), ops = graph.ops.size();
  Lowering lowering(builder, call);
  ValueIds results = it->second(lowering);
  if (!lowering.failed()) return std::optional(std::move(results));
  undo(graph, values, ops);
  if (!lowering.malformed().ok()) return lowering.malformed();
  return opaque(lowering.why());
}

bool knows_aten_op(std::string_view op) { return table().contains(op); }

std::vector<std::string_view> known_aten_ops() {
  std::vector<std::string_view> names;
  for (const auto& [name, recipe] : table()) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace keirin
