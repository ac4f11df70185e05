// SPDX-License-Identifier: Apache-2.0
#include "core/tune/shrink.h"

#include <algorithm>
#include <optional>
#include <set>

#include "core/ops/builder.h"

namespace keirin {
namespace {

// The result's readers read an operand of the same type instead.
std::optional<Graph> without(Graph graph, OpId op, size_t operand) {
  const ValueId from = graph.ops[op].results[0], to = graph.ops[op].operands[operand];
  if (to == kNone || graph.type(to).dtype != graph.type(from).dtype || graph.type(to).sizes != graph.type(from).sizes) return {};
  graph.replace_uses(from, to);
  std::erase_if(graph.outputs, [&](const Output& o) { return graph.values[o.value].kind != ValueKind::kResult; });
  if (graph.outputs.empty()) return {};
  graph.drop_dead();
  return graph;
}

// What the op computed becomes an input. Integers and bools stay computed: they may be indices.
std::optional<Graph> cut_at(Graph graph, OpId op) {
  const ValueId from = graph.ops[op].results[0];
  if (!is_float(graph.type(from).dtype)) return {};
  Type type = graph.type(from);
  type.strides = contiguous_strides(type.sizes);
  const ValueId input = graph.add_input(std::move(type), static_cast<uint32_t>(graph.inputs.size()));
  graph.replace_uses(from, input);
  std::erase_if(graph.outputs, [&](const Output& o) { return o.value == input; });
  if (graph.outputs.empty()) return {};
  graph.drop_dead();
  return graph;
}

// Every axis of that size becomes the smaller one, in types and attributes, and the table infers the rest anew.
std::optional<Graph> resized(const Graph& graph, int64_t size, int64_t smaller) {
  const auto change = [&](Dims dims) { return std::replace(dims.begin(), dims.end(), size, smaller), dims; };
  Graph out;
  Builder builder(out);
  std::vector<ValueId> to(graph.values.size(), kNone);
  for (ValueId v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    Type type{value.type.dtype, change(value.type.sizes), {}};
    type.strides = contiguous_strides(type.sizes);
    if (value.kind == ValueKind::kInput) to[v] = out.add_input(std::move(type), value.index, value.name);
    else if (value.kind == ValueKind::kConstant) to[v] = out.add_constant(std::move(type), value.index, value.kind);
  }
  for (const Op& op : graph.ops) {
    ValueIds operands;
    for (ValueId v : op.operands) operands.push_back(v == kNone ? kNone : to[v]);
    Attrs attrs = op.attrs;
    for (Attr& a : attrs)
      if (a.key == AttrKey::k_sizes) a.value = change(std::get<Dims>(a.value));
    Result<ValueIds> made = builder.emit(op.code, std::move(operands), std::move(attrs));
    if (!made.ok() || made.value().size() != op.results.size()) return {};
    for (size_t i = 0; i < op.results.size(); ++i) to[op.results[i]] = made.value()[i];
  }
  for (const Output& o : graph.outputs) out.outputs.push_back({to[o.value], kNone, kNone});
  return out;
}

class Shrinker {
 public:
  Shrinker(Graph graph, const Fails& fails, int most_tries) : graph_(std::move(graph)), fails_(fails), left_(most_tries) {}

  Graph run() {
    for (bool smaller = true; smaller && left_ > 0;) smaller = outputs() | ops() | sizes();
    return std::move(graph_);
  }

 private:
  bool keep(std::optional<Graph> tried) {
    if (!tried || left_-- <= 0) return false;
    for (const Output& o : tried->outputs) {  // memory of its own
      Type& type = tried->values[o.value].type;
      type.strides = contiguous_strides(type.sizes);
    }
    if (!fails_(*tried)) return false;
    graph_ = std::move(*tried);
    return true;
  }

  bool outputs() {
    if (graph_.outputs.size() == 1) return false;
    for (const Output& o : std::vector<Output>(graph_.outputs)) {
      Graph tried = graph_;
      tried.outputs = {o};
      tried.drop_dead();
      if (keep(std::move(tried))) return true;
    }
    return false;
  }

  bool ops() {
    bool any = false;
    for (size_t op = graph_.ops.size(); op-- > 0;) {
      if (op >= graph_.ops.size()) continue;
      bool gone = false;
      // The op as the only output: what comes behind it is not needed to fail.
      Graph tried = graph_;
      tried.outputs = {{tried.ops[op].results[0], kNone, kNone}};
      tried.drop_dead();
      if (tried.ops.size() < graph_.ops.size()) gone = keep(std::move(tried));
      for (size_t k = 0; !gone && k < graph_.ops[op].operands.size(); ++k) gone = keep(without(graph_, static_cast<OpId>(op), k));
      if (!gone) gone = keep(cut_at(graph_, static_cast<OpId>(op)));
      any |= gone;
    }
    return any;
  }

  bool sizes() {
    std::set<int64_t> present;
    for (const Value& v : graph_.values)
      for (int64_t s : v.type.sizes) present.insert(s);
    bool any = false;
    for (auto size = present.rbegin(); size != present.rend(); ++size)
      for (int64_t smaller : {int64_t{1}, int64_t{2}, *size / 2})
        if (smaller < *size && smaller > 0 && keep(resized(graph_, *size, smaller))) {
          any = true;
          break;
        }
    return any;
  }

  Graph graph_;
  const Fails& fails_;
  int left_;
};

}  // namespace

Graph shrink(Graph graph, const Fails& fails, int most_tries) { return Shrinker(std::move(graph), fails, most_tries).run(); }

}  // namespace keirin
