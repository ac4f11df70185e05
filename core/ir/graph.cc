// SPDX-License-Identifier: Apache-2.0
//
// The mechanics of a Graph: appending, counting, replacing, dropping. No operator has a meaning here; that is core/ops.
#include "core/ir/graph.h"

#include <algorithm>

namespace keirin {
namespace {

// Axes of size 1 and tensors without elements say nothing about the order in memory.
bool same_layout(const Dims& sizes, const Dims& a, const Dims& b) {
  if (a.size() != sizes.size() || b.size() != sizes.size()) return false;
  for (size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] != 1 && a[i] != b[i]) return false;
  return true;
}

template <class T>
const T* find_as(const Op& op, AttrKey key) {
  const AttrValue* value = op.find(key);
  return value ? std::get_if<T>(value) : nullptr;
}

template <class T>
T copy_or(const Op& op, AttrKey key, T absent) {
  const T* value = find_as<T>(op, key);
  return value ? *value : absent;
}

}  // namespace

int64_t Type::num_elements() const {
  int64_t n = 1;
  for (int64_t size : sizes) n *= size;
  return n;
}

Encoding Type::encoding() const {
  if (num_elements() == 0 || same_layout(sizes, strides, contiguous_strides(sizes))) return Encoding::kContiguous;
  if ((rank() == 4 || rank() == 5) && same_layout(sizes, strides, channels_last_strides(sizes)))
    return Encoding::kChannelsLast;
  return Encoding::kStrided;
}

Dims contiguous_strides(const Dims& sizes) {
  Dims strides(sizes.size());
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = step;
    step *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

Dims channels_last_strides(const Dims& sizes) {
  Dims strides(sizes.size());
  if (sizes.size() < 3) return contiguous_strides(sizes);
  strides[1] = 1;
  int64_t step = std::max<int64_t>(sizes[1], 1);
  for (size_t i = sizes.size(); i-- > 2;) {
    strides[i] = step;
    step *= std::max<int64_t>(sizes[i], 1);
  }
  strides[0] = step;
  return strides;
}

const AttrValue* Op::find(AttrKey key) const {
  for (const Attr& attr : attrs)
    if (attr.key == key) return &attr.value;
  return nullptr;
}

int64_t Op::i(AttrKey key) const { return copy_or<int64_t>(*this, key, 0); }
double Op::d(AttrKey key) const { return copy_or<double>(*this, key, 0.0); }
bool Op::b(AttrKey key) const { return copy_or<bool>(*this, key, false); }

const Dims& Op::ints(AttrKey key) const {
  static const Dims kEmpty;
  const Dims* value = find_as<Dims>(*this, key);
  return value ? *value : kEmpty;
}

const std::string& Op::s(AttrKey key) const {
  static const std::string kEmpty;
  const std::string* value = find_as<std::string>(*this, key);
  return value ? *value : kEmpty;
}

void Op::set(AttrKey key, AttrValue value) {
  auto at = std::lower_bound(attrs.begin(), attrs.end(), key, [](const Attr& a, AttrKey k) { return a.key < k; });
  if (at != attrs.end() && at->key == key)
    at->value = std::move(value);
  else
    attrs.insert(at, Attr{key, std::move(value)});
}

void Op::erase(AttrKey key) {
  attrs.erase(std::remove_if(attrs.begin(), attrs.end(), [key](const Attr& attr) { return attr.key == key; }), attrs.end());
}

ValueId Graph::add_input(Type type, uint32_t index, SharedText name) {
  ValueId id = static_cast<ValueId>(values.size());
  Value& value = values.emplace_back();
  value.type = std::move(type);
  value.kind = ValueKind::kInput;
  value.index = index;
  value.name = std::move(name);
  inputs.push_back(id);
  return id;
}

ValueId Graph::add_constant(Type type, uint32_t index, ValueKind kind, SharedText name) {
  ValueId id = static_cast<ValueId>(values.size());
  Value& value = values.emplace_back();
  value.type = std::move(type);
  value.kind = kind;
  value.index = index;
  value.name = std::move(name);
  return id;
}

OpId Graph::add_op(OpCode code, ValueIds operands, Attrs attrs, std::vector<Type> types) {
  OpId id = static_cast<OpId>(ops.size());
  Op& op = ops.emplace_back();
  op.code = code;
  op.operands = std::move(operands);
  op.attrs = std::move(attrs);
  std::sort(op.attrs.begin(), op.attrs.end(), [](const Attr& a, const Attr& b) { return a.key < b.key; });
  for (uint32_t k = 0; k < types.size(); ++k) {
    op.results.push_back(static_cast<ValueId>(values.size()));
    Value& value = values.emplace_back();
    value.type = std::move(types[k]);
    value.producer = id;
    value.index = k;
  }
  return id;
}

std::vector<uint32_t> Graph::count_uses() const {
  std::vector<uint32_t> uses(values.size());
  for (const Op& op : ops)
    for (ValueId v : op.operands)
      if (v != kNone) ++uses[v];
  for (const Output& output : outputs) ++uses[output.value];
  return uses;
}

void Graph::replace_uses(ValueId from, ValueId to) {
  for (Op& op : ops) std::replace(op.operands.begin(), op.operands.end(), from, to);
  for (Output& output : outputs)
    if (output.value == from) output.value = to;
}

bool Graph::drop_dead() {
  std::vector<uint8_t> live_value(values.size()), live_op(ops.size()), live_body(bodies.size());
  for (ValueId v : inputs) live_value[v] = 1;
  for (const Output& output : outputs) {
    live_value[output.value] = 1;
    if (output.updates != kNone) live_value[output.updates] = 1;
    if (output.alias_of != kNone) live_value[output.alias_of] = 1;
  }
  for (size_t i = ops.size(); i-- > 0;) {
    const Op& op = ops[i];
    bool live = op.effects;
    for (ValueId v : op.results) live = live || live_value[v];
    if (!live) continue;
    live_op[i] = 1;
    for (ValueId v : op.results) live_value[v] = 1;
    for (ValueId v : op.operands)
      if (v != kNone) live_value[v] = 1;
    if (op.body != kNone) live_body[op.body] = 1;
  }

  auto renumber = [](const std::vector<uint8_t>& live) {
    std::vector<uint32_t> to(live.size(), kNone);
    uint32_t next = 0;
    for (size_t i = 0; i < live.size(); ++i)
      if (live[i]) to[i] = next++;
    return to;
  };
  auto compact = [](auto& items, const std::vector<uint32_t>& to) {
    size_t kept = 0;
    for (size_t i = 0; i < items.size(); ++i)
      if (to[i] != kNone) {
        if (kept != i) items[kept] = std::move(items[i]);
        ++kept;
      }
    bool shrank = kept != items.size();
    items.erase(items.begin() + static_cast<std::ptrdiff_t>(kept), items.end());
    return shrank;
  };
  std::vector<uint32_t> value_to = renumber(live_value), op_to = renumber(live_op), body_to = renumber(live_body);
  bool changed = compact(values, value_to);
  changed = compact(ops, op_to) || changed;
  changed = compact(bodies, body_to) || changed;
  if (!changed) return false;

  auto move_to = [&](ValueId& v) { v = v == kNone ? kNone : value_to[v]; };
  for (Value& value : values)
    if (value.producer != kNone) value.producer = op_to[value.producer];
  for (Op& op : ops) {
    for (ValueId& v : op.operands) move_to(v);
    for (ValueId& v : op.results) move_to(v);
    if (op.body != kNone) op.body = body_to[op.body];
  }
  for (ValueId& v : inputs) move_to(v);
  for (Output& output : outputs) {
    move_to(output.value);
    move_to(output.updates);
    move_to(output.alias_of);
  }
  return true;
}

bool Graph::operator==(const Graph&) const = default;

}  // namespace keirin
