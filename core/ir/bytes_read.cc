// SPDX-License-Identifier: Apache-2.0
//
// From canonical bytes to a Graph: for tests, the oracle's host side and `keirin opt`. krn_graph_open has validated every
// index before anything here follows one.
#include <bit>
#include <cstring>

#include "abi/graph.h"
#include "core/ir/bytes.h"
#include "core/ir/rows.h"

namespace keirin {
namespace {

// Bodies are copied into every graph that calls them, so a small file could ask for an enormous result.
constexpr size_t kMaxOps = size_t{1} << 22;

Result<krn_graph> open_bytes(const std::vector<uint8_t>& bytes) {
  krn_graph g;
  if (int32_t line = krn_graph_open(bytes.data(), bytes.size(), &g); line != 0)
    return Status(Code::k_corrupt, {"region bytes: refused by check " + std::to_string(line) + " of abi/graph_open.inc",
                                    std::to_string(bytes.size()) + " bytes", "nothing was read",
                                    "delete the file they came from; it is made again"});
  return g;
}

class Reader {
 public:
  explicit Reader(const krn_graph& g) : g_(g) {}

  Result<Graph> run() {
    uint32_t n = static_cast<uint32_t>(krn_graph_count(&g_, KRN_SECTION_FUNCTIONS));
    functions_.resize(n);
    for (uint32_t f = n; f-- > 0;) KRN_TRY(read_function(f));  // bodies have higher numbers than their callers
    set_names(functions_[0]);
    return std::move(functions_[0]);
  }

 private:
  Type type_of(uint32_t value) const {
    const krn_gtype* t = krn_graph_value_type(&g_, value);
    const int64_t* sizes = krn_graph_sizes(&g_, t);
    const int64_t* strides = krn_graph_strides(&g_, t);
    return Type{static_cast<DType>(t->dtype), Dims(sizes, sizes + t->rank), Dims(strides, strides + t->rank)};
  }

  AttrValue attr_of(const krn_gattr& a) const {
    switch (attr_kind(static_cast<AttrKey>(a.key))) {
      case 'i': return static_cast<int64_t>(a.bits);
      case 'd': return std::bit_cast<double>(a.bits);
      case 'b': return a.bits != 0;
      case 'I': {
        if (a.count == 0) return Dims{};
        const int64_t* words = krn_graph_words(&g_, &a);
        return Dims(words, words + a.count);
      }
      default: return a.count == 0 ? std::string() : std::string(krn_graph_chars(&g_, &a), a.count);
    }
  }

  Status read_function(uint32_t f) {
    const krn_gfunction* function = krn_graph_function(&g_, f);
    Graph& graph = functions_[f];
    id_.assign(krn_graph_count(&g_, KRN_SECTION_VALUES), kNone);
    bodies_.clear();
    for (uint32_t k = 0; k < function->num_inputs; ++k) {
      const krn_ginput* input = krn_graph_input(&g_, function->first_input + k);
      bool weight = input->flags & KRN_INPUT_WEIGHT;
      ValueId v = weight ? graph.add_constant(type_of(input->value), input->weight, ValueKind::kConstant)
                         : graph.add_input(type_of(input->value), static_cast<uint32_t>(graph.inputs.size()));
      set_flags(graph, v, input->value);
    }
    for (uint32_t k = 0; k < function->num_nodes; ++k) KRN_TRY(read_node(graph, function->first_node + k));
    for (uint32_t k = 0; k < function->num_outputs; ++k) {
      const krn_goutput* output = krn_graph_output(&g_, function->first_output + k);
      Output o;
      o.value = id_[output->value];
      if (output->alias_input != KRN_NONE)
        o.updates = id_[krn_graph_input(&g_, function->first_input + output->alias_input)->value];
      graph.outputs.push_back(o);
    }
    return {};
  }

  void set_flags(Graph& graph, ValueId v, uint32_t value) {
    graph.values[v].observed = krn_graph_value(&g_, value)->flags & KRN_VALUE_OBSERVED;
    id_[value] = v;
  }

  Status read_node(Graph& graph, uint32_t n) {
    const krn_gnode* node = krn_graph_node(&g_, n);
    ValueIds operands;
    for (uint32_t k = 0; k < node->num_operands; ++k) {
      uint32_t v = krn_graph_operand(&g_, node, k);
      operands.push_back(v == KRN_NONE ? kNone : id_[v]);
    }
    Attrs attrs;
    for (uint32_t k = 0; k < node->num_attrs; ++k) {
      const krn_gattr* a = krn_graph_attr(&g_, node->first_attr + k);
      attrs.push_back({static_cast<AttrKey>(a->key), attr_of(*a)});
    }
    std::vector<Type> types;
    for (uint32_t k = 0; k < node->num_results; ++k) types.push_back(type_of(node->first_result + k));
    OpId op = graph.add_op(static_cast<OpCode>(node->op), std::move(operands), std::move(attrs), std::move(types));
    for (uint32_t k = 0; k < node->num_results; ++k) set_flags(graph, graph.ops[op].results[k], node->first_result + k);
    if (++num_ops_ > kMaxOps) return Status(Code::k_exhausted, "region bytes: its bodies unfold to too many ops");
    if (node->body == KRN_NONE) return {};
    graph.ops[op].body = body_index(graph, node->body);
    return graph.ops[op].body == kNone ? Status(Code::k_exhausted, "region bytes: its bodies unfold to too many ops") : Status();
  }

  uint32_t body_index(Graph& graph, uint32_t function) {
    for (uint32_t i = 0; i < bodies_.size(); ++i)
      if (bodies_[i] == function) return i;
    num_ops_ += count_ops(functions_[function]);
    if (num_ops_ > kMaxOps) return kNone;
    bodies_.push_back(function);
    graph.bodies.push_back(functions_[function]);
    return static_cast<uint32_t>(bodies_.size() - 1);
  }

  static size_t count_ops(const Graph& graph) {
    size_t n = graph.ops.size() + 1;
    for (const Graph& body : graph.bodies) n += count_ops(body);
    return n;
  }

  void set_names(Graph& graph) {
    for (uint64_t i = 0; i < krn_graph_count(&g_, KRN_SECTION_NAMES); ++i) {
      const krn_gname* name = static_cast<const krn_gname*>(krn_graph_at(&g_, KRN_SECTION_NAMES, i));
      if (id_[name->value] == kNone || name->num_chars == 0) continue;  // id_ is still that of function 0
      auto* chars = static_cast<const char*>(krn_graph_at(&g_, KRN_SECTION_NAME_CHARS, name->first_char));
      graph.values[id_[name->value]].name = std::string_view(chars, name->num_chars);
    }
  }

  const krn_graph& g_;
  std::vector<Graph> functions_;
  std::vector<ValueId> id_;        // by value of the bytes, for the function being read
  std::vector<uint32_t> bodies_;   // functions behind the bodies of the graph being read
  size_t num_ops_ = 0;
};

}  // namespace

Result<Graph> read_graph(const std::vector<uint8_t>& bytes) {
  KRN_TRY_LET(krn_graph g, open_bytes(bytes));
  return Reader(g).run();
}

Result<Hash> hash_region(const std::vector<uint8_t>& bytes) {
  if (Result<krn_graph> g = open_bytes(bytes); !g.ok()) return std::move(g).status();
  krn_graph_header header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  Sha256 hash;
  for (uint32_t i = 0; i < header.num_sections; ++i) {
    krn_graph_section section;
    std::memcpy(&section, bytes.data() + sizeof(header) + i * sizeof(section), sizeof(section));
    if (section.flags & KRN_SECTION_NOT_HASHED) continue;
    const uint64_t shape[3] = {section.id, section.stride, section.count};
    hash.update(shape, sizeof(shape));
    hash.update(bytes.data() + section.offset, section.stride * section.count);
  }
  return hash.finish();
}

}  // namespace keirin
