// SPDX-License-Identifier: Apache-2.0
#include "core/ir/verify.h"

#include "core/ir/rows.h"
#include "core/ir/text.h"

namespace keirin {
namespace {

constexpr size_t kMaxRank = 16;

Status bad(std::string what) {
  return Status(Code::k_internal, {std::move(what), "", "", "report it with a dump of the graph (KEIRIN_DUMP=dir)"});
}

Status bad_op(const Graph& graph, OpId id, const std::string& what) {
  const Op& op = graph.ops[id];
  std::string where = "op " + std::to_string(id) + " " + std::string(op_name(op.code));
  if (!op.origin.empty()) where += " @ " + op.origin.str();
  return bad("graph: " + what).at(std::move(where));
}

Status check_value(const Graph& graph, ValueId v) {
  const Value& value = graph.values[v];
  const std::string name = "value %" + std::to_string(v);
  if (value.type.dtype == DType::kNone || dtype_name(value.type.dtype) == "none") return bad(name + " has no dtype");
  if (value.type.sizes.size() > kMaxRank) return bad(name + " has more than 16 axes");
  if (value.type.strides.size() != value.type.sizes.size()) return bad(name + " has not one stride per axis");
  int64_t elements = 1;
  for (int64_t size : value.type.sizes)
    if (size < 0 || __builtin_mul_overflow(elements, size, &elements)) return bad(name + " has impossible sizes");
  if (__builtin_mul_overflow(elements, dtype_bytes(value.type.dtype), &elements))
    return bad(name + " has impossible sizes");
  if (value.kind != ValueKind::kResult) {
    if (value.producer != kNone) return bad(name + " is not a result but has a producer");
    return {};
  }
  if (value.producer >= graph.ops.size() || value.index >= graph.ops[value.producer].results.size() ||
      graph.ops[value.producer].results[value.index] != v)
    return bad(name + " is not the result that it says it is");
  return {};
}

bool in_class(DType dtype, std::string_view cls) {
  if (cls == "flt") return is_float(dtype);
  if (cls == "int") return is_int(dtype);
  if (cls == "bool") return dtype == DType::k_bool;
  if (cls == "num") return is_float(dtype) || is_int(dtype);
  return dtype_class(dtype) != DTypeClass::x;
}

// Operands of a scalar row have equal sizes and, but for `select`'s condition, equal dtypes of the row's class.
Status check_scalar(const Graph& graph, OpId id, const OpRow& row) {
  const Op& op = graph.ops[id];
  for (ValueId v : op.operands)
    if (v == kNone) return bad_op(graph, id, "a scalar row has an absent operand");
  size_t first = op.code == OpCode::k_select ? 1 : 0;
  if (first == 1 && graph.type(op.operands[0]).dtype != DType::k_bool)
    return bad_op(graph, id, "the condition of select is not bool");
  const Type& type = graph.type(op.operands[first]);
  if (!in_class(type.dtype, row.dtypes)) return bad_op(graph, id, "operand dtype is not of the row's class");
  for (size_t k = 0; k < op.operands.size(); ++k) {
    const Type& other = graph.type(op.operands[k]);
    if (other.sizes != type.sizes) return bad_op(graph, id, "operands have different sizes");
    if (k >= first && other.dtype != type.dtype) return bad_op(graph, id, "operands have different dtypes");
  }
  return {};
}

bool allows(std::string_view keys, std::string_view key) {
  while (!keys.empty()) {
    size_t end = keys.find(' ');
    if (keys.substr(0, end) == key) return true;
    if (end == std::string_view::npos) break;
    keys.remove_prefix(end + 1);
  }
  return false;
}

Status check_attrs(const Graph& graph, OpId id, const OpRow& row) {
  const Op& op = graph.ops[id];
  for (size_t k = 0; k < op.attrs.size(); ++k) {
    if (!attr_has_kind(op.attrs[k])) return bad_op(graph, id, "an attribute has the wrong kind");
    if (k && !(op.attrs[k - 1].key < op.attrs[k].key)) return bad_op(graph, id, "attributes are not in ascending order");
    if (!allows(row.attrs, attr_name(op.attrs[k].key)))
      return bad_op(graph, id, "the row has no attribute '" + std::string(attr_name(op.attrs[k].key)) + "'");
  }
  return {};
}

Status check_body(const Graph& graph, OpId id) {
  const Op& op = graph.ops[id];
  if (op.body == kNone) return {};
  if (op.body >= graph.bodies.size()) return bad_op(graph, id, "its body does not exist");
  const Graph& body = graph.bodies[op.body];
  size_t present = 0;
  for (ValueId v : op.operands) {
    if (v == kNone) continue;
    if (present >= body.inputs.size()) return bad_op(graph, id, "its body takes fewer inputs");
    const Type& inner = body.type(body.inputs[present++]);
    if (inner.dtype != graph.type(v).dtype || inner.sizes != graph.type(v).sizes)
      return bad_op(graph, id, "its body takes another type");
  }
  if (present != body.inputs.size()) return bad_op(graph, id, "its body takes more inputs");
  if (body.outputs.size() != op.results.size()) return bad_op(graph, id, "its body has another number of outputs");
  for (size_t k = 0; k < op.results.size(); ++k) {
    const Type& inner = body.type(body.outputs[k].value);
    if (inner.dtype != graph.type(op.results[k]).dtype || inner.sizes != graph.type(op.results[k]).sizes)
      return bad_op(graph, id, "its body gives another type");
  }
  return {};
}

Status check_op(const Graph& graph, OpId id) {
  const Op& op = graph.ops[id];
  const OpRow* row = find_row(op.code);
  if (!row) return bad_op(graph, id, "no such row");
  int operands = static_cast<int>(op.operands.size());
  if (operands < row->arity_min || (row->arity_max >= 0 && operands > row->arity_max))
    return bad_op(graph, id, "has " + std::to_string(operands) + " operands");
  if (row->num_results >= 0 && static_cast<int>(op.results.size()) != row->num_results)
    return bad_op(graph, id, "has " + std::to_string(op.results.size()) + " results");
  for (ValueId v : op.operands) {
    if (v == kNone) continue;
    if (v >= graph.values.size()) return bad_op(graph, id, "reads a value that does not exist");
    const Value& value = graph.values[v];
    if (value.kind == ValueKind::kResult && value.producer >= id) return bad_op(graph, id, "reads a value made later");
  }
  for (uint32_t k = 0; k < op.results.size(); ++k) {
    ValueId v = op.results[k];
    if (v >= graph.values.size() || graph.values[v].producer != id || graph.values[v].index != k)
      return bad_op(graph, id, "does not own its results");
  }
  if (op.code != OpCode::kOpaque && (op.effects || op.call != kNone))
    return bad_op(graph, id, "only opaque ops have effects or call records");
  if (row->kind != RowKind::kComposite && row->kind != RowKind::kOpaque)
    for (ValueId v : op.operands)
      if (v == kNone) return bad_op(graph, id, "an operand is absent");
  KRN_TRY(check_attrs(graph, id, *row));
  if (row->kind == RowKind::kScalar) KRN_TRY(check_scalar(graph, id, *row));
  return check_body(graph, id);
}

Status check_borders(const Graph& graph) {
  std::vector<uint8_t> listed(graph.values.size());
  for (ValueId v : graph.inputs) {
    if (v >= graph.values.size() || graph.values[v].kind != ValueKind::kInput || listed[v])
      return bad("graph: its list of inputs is wrong");
    listed[v] = 1;
  }
  for (ValueId v = 0; v < graph.values.size(); ++v)
    if (graph.values[v].kind == ValueKind::kInput && !listed[v]) return bad("graph: an input is not listed");
  bool updating = false;
  for (const Output& output : graph.outputs) {
    if (output.value >= graph.values.size()) return bad("graph: an output does not exist");
    if (output.alias_of != kNone && output.alias_of >= graph.values.size()) return bad("graph: an alias does not exist");
    if (output.updates == kNone) {
      if (updating) return bad("graph: an output of the user's stands behind an update");
      continue;
    }
    updating = true;
    if (output.updates >= graph.values.size()) return bad("graph: an update of nothing");
    const Value& target = graph.values[output.updates];
    if (target.kind != ValueKind::kInput && target.kind != ValueKind::kState)
      return bad("graph: an update of something that cannot change");
    if (target.type.dtype != graph.type(output.value).dtype || target.type.sizes != graph.type(output.value).sizes)
      return bad("graph: an update of another type");
  }
  return {};
}

}  // namespace

Status verify(const Graph& graph) {
  for (const Graph& body : graph.bodies) KRN_TRY(verify(body));
  for (ValueId v = 0; v < graph.values.size(); ++v) KRN_TRY(check_value(graph, v));
  KRN_TRY(check_borders(graph));
  for (OpId id = 0; id < graph.ops.size(); ++id) KRN_TRY(check_op(graph, id));
  return {};
}

}  // namespace keirin
