// SPDX-License-Identifier: Apache-2.0
#include "core/passes/rewriter.h"

#include <algorithm>
#include <utility>

#include "core/ir/rows.h"

namespace keirin {

Rewriter::Rewriter(Graph& graph)
    : target_(graph), old_(target_), builder_(new_), to_(old_.values.size(), kNone), uses_(old_.count_uses()),
      is_output_(old_.values.size()) {
  new_.bodies = old_.bodies;
  new_.values.reserve(old_.values.size());
  new_.ops.reserve(old_.ops.size());
  for (ValueId v = 0; v < old_.values.size(); ++v) {
    if (old_.values[v].kind == ValueKind::kResult) continue;
    to_[v] = static_cast<ValueId>(new_.values.size());
    new_.values.push_back(old_.values[v]);
  }
  for (ValueId v : old_.inputs) new_.inputs.push_back(to_[v]);
  for (const Output& output : old_.outputs) is_output_[output.value] = 1;
}

const Op& Rewriter::begin(OpId id) {
  fresh_from_ = new_.values.size();
  builder_.set_origin(old_.ops[id].origin);
  return old_.ops[id];
}

ValueIds Rewriter::operands(const Op& old_op) const {
  ValueIds mapped;
  for (ValueId v : old_op.operands) mapped.push_back(map(v));
  return mapped;
}

OpId Rewriter::keep(OpId id) {
  OpId copy = static_cast<OpId>(new_.ops.size());
  Op op = old_.ops[id];
  for (ValueId& v : op.operands) v = map(v);
  for (ValueId& v : op.results) {
    Value value = old_.values[v];
    value.producer = copy;
    to_[v] = static_cast<ValueId>(new_.values.size());
    new_.values.push_back(std::move(value));
    v = to_[v];
  }
  new_.ops.push_back(std::move(op));
  return copy;
}

bool Rewriter::can_replace(ValueId old_value, ValueId to) const {
  return to >= fresh_from_ || !is_output_[old_value] || old_.type(old_value).strides == new_.type(to).strides;
}

void Rewriter::replace(ValueId old_value, ValueId to) {
  to_[old_value] = to;
  if (to < fresh_from_) return;
  Value& value = new_.values[to];
  value.type.strides = old_.type(old_value).strides;
  if (!value.range) value.range = old_.values[old_value].range;
  if (value.name.empty()) value.name = old_.values[old_value].name;
}

Graph Rewriter::finish() {
  for (const Output& output : old_.outputs)
    new_.outputs.push_back({map(output.value), map(output.updates), map(output.alias_of)});
  new_.drop_dead();
  number_leaves_first();
  std::swap(target_, new_);
  return std::move(new_);
}

// A pass may have added constants late; rewriting a second time must not number them otherwise.
void Rewriter::number_leaves_first() {
  if (std::ranges::is_partitioned(new_.values, [](const Value& v) { return v.kind != ValueKind::kResult; })) return;
  std::vector<ValueId> to(new_.values.size());
  ValueId next = 0;
  for (bool leaves : {true, false})
    for (ValueId v = 0; v < new_.values.size(); ++v)
      if ((new_.values[v].kind != ValueKind::kResult) == leaves) to[v] = next++;
  std::vector<Value> values(new_.values.size());
  for (ValueId v = 0; v < values.size(); ++v) values[to[v]] = std::move(new_.values[v]);
  new_.values = std::move(values);
  auto move_to = [&](ValueId& v) { v = v == kNone ? kNone : to[v]; };
  for (Op& op : new_.ops) {
    for (ValueId& v : op.operands) move_to(v);
    for (ValueId& v : op.results) move_to(v);
  }
  for (ValueId& v : new_.inputs) move_to(v);
  for (Output& output : new_.outputs) {
    move_to(output.value);
    move_to(output.updates);
    move_to(output.alias_of);
  }
}

}  // namespace keirin
