// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <cmath>

#include "core/ir/rows.h"
#include "core/ir/text.h"

namespace keirin {
namespace {

void put_double(std::string& out, double x) {
  if (std::isnan(x)) {
    out += "nan";
    return;
  }
  char text[40];
  auto end = std::to_chars(text, text + sizeof(text), x).ptr;  // shortest form that reads back to the same bits
  out.append(text, end);
}

void put_string(std::string& out, std::string_view s) {
  out += '"';
  for (char c : s) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  out += '"';
}

void put_dims(std::string& out, const Dims& dims, char open, char close) {
  out += open;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i) out += ',';
    out += std::to_string(dims[i]);
  }
  out += close;
}

void put_value_id(std::string& out, ValueId v) {
  if (v == kNone)
    out += '_';
  else
    out += '%' + std::to_string(v);
}

void put_attr(std::string& out, const Attr& attr) {
  out += attr_name(attr.key);
  out += '=';
  if (auto* id = std::get_if<int64_t>(&attr.value); id && attr.key == AttrKey::k_dtype && *id > 0 && *id < 256) {
    std::string_view name = dtype_name(static_cast<DType>(*id));
    if (name != "none") {  // else the number, as it is
      out += name;
      return;
    }
  }
  struct Put {
    std::string& out;
    void operator()(int64_t x) { out += std::to_string(x); }
    void operator()(double x) { put_double(out, x); }
    void operator()(bool x) { out += x ? "true" : "false"; }
    void operator()(const Dims& x) { put_dims(out, x, '[', ']'); }
    void operator()(const std::string& x) { put_string(out, x); }
  };
  std::visit(Put{out}, attr.value);
}

// The type and everything else that is known about a value.
void put_facts(std::string& out, const Value& value) {
  out += dtype_name(value.type.dtype);
  put_dims(out, value.type.sizes, '[', ']');
  if (value.type.strides != contiguous_strides(value.type.sizes)) put_dims(out, value.type.strides, '{', '}');
  if (!value.observed) out += " unobserved";
  if (value.range) {
    out += " in [";
    put_double(out, value.range->low);
    out += ", ";
    put_double(out, value.range->high);
    out += value.range->may_be_nan ? ", nan]" : "]";
  }
  if (!value.name.empty()) {
    out += ' ';
    put_string(out, value.name.str());
  }
}

void put_op(std::string& out, const Graph& graph, const Op& op) {
  for (size_t k = 0; k < op.results.size(); ++k) {
    if (k) out += ", ";
    put_value_id(out, op.results[k]);
  }
  if (!op.results.empty()) out += " = ";
  out += op_name(op.code);
  if (op.call != kNone) out += '#' + std::to_string(op.call);
  if (op.effects) out += '!';
  out += '(';
  for (size_t k = 0; k < op.operands.size(); ++k) {
    if (k) out += ", ";
    put_value_id(out, op.operands[k]);
  }
  out += ')';
  if (!op.attrs.empty()) {
    out += " {";
    for (size_t k = 0; k < op.attrs.size(); ++k) {
      if (k) out += ", ";
      put_attr(out, op.attrs[k]);
    }
    out += '}';
  }
  for (size_t k = 0; k < op.results.size(); ++k) {
    out += k ? ", " : " : ";
    put_facts(out, graph.values[op.results[k]]);
  }
  if (op.body != kNone) out += " body " + std::to_string(op.body);
  if (!op.origin.empty()) {
    out += " @ ";
    put_string(out, op.origin.str());
  }
}

const char* kind_word(ValueKind kind) {
  switch (kind) {
    case ValueKind::kInput: return "input";
    case ValueKind::kConstant: return "constant";
    case ValueKind::kState: return "state";
    case ValueKind::kResult: break;
  }
  return "result";
}

void put_leaf(std::string& out, const Graph& graph, ValueId v, const std::string& indent) {
  const Value& value = graph.values[v];
  out += indent;
  put_value_id(out, v);
  out += " = ";
  out += kind_word(value.kind);
  out += ' ' + std::to_string(value.index) + " : ";
  put_facts(out, value);
  out += '\n';
}

void put_graph(std::string& out, const Graph& graph, const std::string& indent) {
  for (ValueId v : graph.inputs) put_leaf(out, graph, v, indent);
  for (ValueId v = 0; v < graph.values.size(); ++v)
    if (graph.values[v].kind == ValueKind::kConstant || graph.values[v].kind == ValueKind::kState)
      put_leaf(out, graph, v, indent);
  for (const Op& op : graph.ops) {
    out += indent;
    put_op(out, graph, op);
    out += '\n';
  }
  for (const Output& output : graph.outputs) {
    out += indent + "output ";
    put_value_id(out, output.value);
    if (output.updates != kNone) {
      out += " updates ";
      put_value_id(out, output.updates);
    }
    if (output.alias_of != kNone) {
      out += " alias ";
      put_value_id(out, output.alias_of);
    }
    out += '\n';
  }
  for (size_t i = 0; i < graph.bodies.size(); ++i) {
    out += indent + "body " + std::to_string(i) + " {\n";
    put_graph(out, graph.bodies[i], indent + "  ");
    out += indent + "}\n";
  }
}

}  // namespace

std::string print(const Graph& graph) {
  std::string out = "graph {\n";
  put_graph(out, graph, "  ");
  out += "}\n";
  return out;
}

std::string print_op(const Graph& graph, OpId op) {
  std::string out;
  put_op(out, graph, graph.ops[op]);
  return out;
}

}  // namespace keirin
