// SPDX-License-Identifier: Apache-2.0
//
// Three steps: order the ops of each function canonically, collect the functions (region first, callers before bodies),
// emit the records section by section.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <unordered_map>

#include "abi/graph.h"
#include "core/ir/bytes.h"
#include "core/ir/rows.h"

namespace keirin {
namespace {

static_assert(std::endian::native == std::endian::little, "the bytes are little-endian");

// The canonical order of one graph: what is reachable from its outputs, in the order of first use.
struct Order {
  std::vector<OpId> ops;        // post-order
  std::vector<ValueId> values;  // leaves and results as they come
  std::vector<ValueId> inputs;  // the leaves among them
};

class Walk {
 public:
  explicit Walk(const Graph& graph) : graph_(graph), seen_value_(graph.values.size()), seen_op_(graph.ops.size()) {}

  Order run() {
    for (const Output& output : graph_.outputs) visit(output.value);
    for (const Output& output : graph_.outputs)
      if (output.updates != kNone) visit(output.updates);
    return std::move(order_);
  }

 private:
  struct Frame {
    OpId op;
    size_t next;
  };

  // Enters the producer of `v`, or records a leaf. Iterative: a chain of 100,000 ops must not end the stack.
  void enter(ValueId v) {
    if (v == kNone) return;
    const Value& value = graph_.values[v];
    if (value.kind != ValueKind::kResult) {
      if (seen_value_[v]) return;
      seen_value_[v] = 1;
      order_.values.push_back(v);
      order_.inputs.push_back(v);
      return;
    }
    if (seen_op_[value.producer]) return;
    seen_op_[value.producer] = 1;
    stack_.push_back({value.producer, 0});
  }

  void visit(ValueId v) {
    enter(v);
    while (!stack_.empty()) {
      Frame& frame = stack_.back();
      const Op& op = graph_.ops[frame.op];
      if (frame.next < op.operands.size()) {
        enter(op.operands[frame.next++]);
        continue;
      }
      order_.ops.push_back(frame.op);
      order_.values.insert(order_.values.end(), op.results.begin(), op.results.end());
      stack_.pop_back();
    }
  }

  const Graph& graph_;
  std::vector<uint8_t> seen_value_, seen_op_;
  std::vector<Frame> stack_;
  Order order_;
};

// A function's inputs are its leaves by first use, but a body is called by position: all of its inputs, in its own order.
Order order_of(const Graph& graph, bool body) {
  Order order = Walk(graph).run();
  if (!body) return order;
  std::vector<ValueId> leaves = std::move(order.inputs);
  order.inputs = graph.inputs;
  std::vector<ValueId> values = order.inputs;
  for (ValueId v : order.values)
    if (graph.values[v].kind != ValueKind::kInput) values.push_back(v);
  for (ValueId v : leaves)
    if (graph.values[v].kind != ValueKind::kInput) order.inputs.push_back(v);
  order.values = std::move(values);
  return order;
}

struct Function {
  const Graph* graph;
  Order order;
};

// The functions of a region: callers before bodies, equal bodies once.
class Functions {
 public:
  Status collect(const Graph& region) {
    KRN_TRY(visit(region, false));
    std::reverse(list_.begin(), list_.end());
    for (uint32_t i = 0; i < list_.size(); ++i) number_[list_[i].graph] = i;
    return {};
  }
  const std::vector<Function>& list() const { return list_; }
  // The function that stands for `body`.
  uint32_t number(const Graph* body) const { return number_.at(stands_for_.at(body)); }

 private:
  Status visit(const Graph& graph, bool body) {
    if (++depth_ > 64) return Status(Code::k_unsupported, "region: bodies are nested too deeply");
    Order order = order_of(graph, body);
    if (body && order.inputs.size() != graph.inputs.size())
      return Status(Code::k_unsupported, "region: a body reads a constant of the model");
    for (OpId id : order.ops) {
      const Op& op = graph.ops[id];
      if (op.body == kNone) continue;
      const Graph* inner = &graph.bodies[op.body];
      if (stands_for_.count(inner)) continue;
      const Graph* equal = find_equal(*inner);
      stands_for_[inner] = equal ? equal : inner;
      if (!equal) KRN_TRY(visit(*inner, true));
    }
    list_.push_back({&graph, std::move(order)});
    --depth_;
    return {};
  }

  // Bodies are written by one function per row, so equal ones are equal graphs: no need to compare up to reordering.
  const Graph* find_equal(const Graph& body) {
    size_t key = body.ops.size() * 31 + body.values.size();
    for (ValueId v : body.inputs)
      for (int64_t size : body.type(v).sizes) key = key * 1000003 + static_cast<size_t>(size);
    auto [at, end] = by_key_.equal_range(key);
    for (; at != end; ++at)
      if (*at->second == body) return at->second;
    by_key_.emplace(key, &body);
    return nullptr;
  }

  std::vector<Function> list_;
  std::unordered_multimap<size_t, const Graph*> by_key_;
  std::unordered_map<const Graph*, const Graph*> stands_for_;
  std::unordered_map<const Graph*, uint32_t> number_;
  int depth_ = 0;
};

struct Sections {
  std::vector<krn_gtype> types;
  std::vector<int64_t> dims;
  std::vector<krn_gvalue> values;
  std::vector<krn_gnode> nodes;
  std::vector<uint32_t> operands;
  std::vector<krn_gattr> attrs;
  std::vector<int64_t> words;
  std::vector<char> chars;
  std::vector<krn_gfunction> functions;
  std::vector<krn_ginput> inputs;
  std::vector<krn_goutput> outputs;
  std::vector<krn_gname> names;
  std::vector<char> name_chars;
};

class Emitter {
 public:
  explicit Emitter(const Functions& functions) : functions_(functions) {}

  Sections run(RegionBytes& out) {
    for (size_t i = 0; i < functions_.list().size(); ++i) emit(functions_.list()[i], i == 0 ? &out : nullptr);
    return std::move(s_);
  }

 private:
  static uint32_t size32(const auto& v) {
    return static_cast<uint32_t>(v.size());
  }

  uint32_t type_number(const Type& type) {
    std::vector<int64_t> key = {static_cast<int64_t>(type.dtype), type.rank()};
    key.insert(key.end(), type.sizes.begin(), type.sizes.end());
    key.insert(key.end(), type.strides.begin(), type.strides.end());
    auto [at, fresh] = type_numbers_.emplace(std::move(key), size32(s_.types));
    if (fresh) {
      s_.types.push_back({static_cast<uint8_t>(type.dtype), static_cast<uint8_t>(type.rank()),
                          static_cast<uint8_t>(type.encoding()), 0, size32(s_.dims)});
      s_.dims.insert(s_.dims.end(), type.sizes.begin(), type.sizes.end());
      s_.dims.insert(s_.dims.end(), type.strides.begin(), type.strides.end());
    }
    return at->second;
  }

  void put_attr(const Attr& attr) {
    krn_gattr record{static_cast<uint32_t>(attr.key), 0, 0};
    if (auto* x = std::get_if<int64_t>(&attr.value)) {
      record.bits = static_cast<uint64_t>(*x);
    } else if (auto* b = std::get_if<bool>(&attr.value)) {
      record.bits = *b;
    } else if (auto* d = std::get_if<double>(&attr.value)) {
      record.bits = std::isnan(*d) ? 0x7ff8000000000000u : std::bit_cast<uint64_t>(*d);  // one NaN: its payload means nothing
    } else if (auto* list = std::get_if<Dims>(&attr.value)) {
      record.count = size32(*list);
      record.bits = s_.words.size();
      s_.words.insert(s_.words.end(), list->begin(), list->end());
    } else {
      const std::string& text = std::get<std::string>(attr.value);
      record.count = size32(text);
      record.bits = s_.chars.size();
      s_.chars.insert(s_.chars.end(), text.begin(), text.end());
    }
    s_.attrs.push_back(record);
  }

  void put_value(const Value& value, std::vector<uint32_t>& number, ValueId v, uint32_t producer, uint32_t result) {
    // Rounding to a dtype that is its own compute dtype is not an event: the bit says nothing there and must not split equals.
    bool observed = value.observed || compute_dtype(value.type.dtype) == value.type.dtype;
    number[v] = size32(s_.values);
    s_.values.push_back({type_number(value.type), producer, result, observed ? KRN_VALUE_OBSERVED : 0u});
  }

  void put_node(const Graph& graph, OpId id, std::vector<uint32_t>& number) {
    const Op& op = graph.ops[id];
    krn_gnode node{};
    node.op = static_cast<uint32_t>(op.code);
    node.first_operand = size32(s_.operands);
    node.num_operands = size32(op.operands);
    for (ValueId v : op.operands) s_.operands.push_back(v == kNone ? KRN_NONE : number[v]);
    node.first_result = size32(s_.values);
    node.num_results = size32(op.results);
    for (uint32_t k = 0; k < op.results.size(); ++k)
      put_value(graph.values[op.results[k]], number, op.results[k], size32(s_.nodes), k);
    node.first_attr = size32(s_.attrs);
    node.num_attrs = size32(op.attrs);
    for (const Attr& attr : op.attrs) put_attr(attr);
    node.body = op.body == kNone ? KRN_NONE : functions_.number(&graph.bodies[op.body]);
    s_.nodes.push_back(node);
  }

  void put_input(const Graph& graph, ValueId v, uint32_t number, RegionBytes* out) {
    krn_ginput input{number, 0, KRN_NONE, 0};
    if (graph.values[v].kind == ValueKind::kConstant && out) {
      input.flags = KRN_INPUT_WEIGHT;
      input.weight = size32(out->weights);
      out->weights.push_back(v);
    }
    s_.inputs.push_back(input);
    if (out) out->inputs.push_back(v);
  }

  void put_name(const Value& value, uint32_t number) {
    if (value.name.empty()) return;
    const std::string& name = value.name.str();
    s_.names.push_back({number, size32(s_.name_chars), size32(name), 0});
    s_.name_chars.insert(s_.name_chars.end(), name.begin(), name.end());
  }

  void emit(const Function& function, RegionBytes* out) {
    const Graph& graph = *function.graph;
    krn_gfunction record{};
    record.first_input = size32(s_.inputs);
    record.first_node = size32(s_.nodes);
    record.first_output = size32(s_.outputs);
    std::vector<uint32_t> number(graph.values.size(), KRN_NONE);
    std::vector<uint32_t> position(graph.values.size(), KRN_NONE);
    size_t next_op = 0;
    for (ValueId v : function.order.values) {
      const Value& value = graph.values[v];
      if (value.kind == ValueKind::kResult) {
        if (number[v] == KRN_NONE) put_node(graph, function.order.ops[next_op++], number);
      } else {
        position[v] = size32(s_.inputs) - record.first_input;
        put_value(value, number, v, KRN_NONE, position[v]);
        put_input(graph, v, number[v], out);
      }
      if (out) put_name(value, number[v]);
    }
    for (const Output& output : graph.outputs)
      s_.outputs.push_back({number[output.value], output.updates == kNone ? KRN_NONE : position[output.updates]});
    if (out) out->nodes = function.order.ops;
    record.num_inputs = size32(s_.inputs) - record.first_input;
    record.num_nodes = size32(s_.nodes) - record.first_node;
    record.num_outputs = size32(s_.outputs) - record.first_output;
    s_.functions.push_back(record);
  }

  const Functions& functions_;
  Sections s_;
  std::map<std::vector<int64_t>, uint32_t> type_numbers_;
};

// Lays the sections out back to back behind header and directory.
class Layout {
 public:
  template <class T>
  void add(uint32_t id, const std::vector<T>& records, uint32_t flags) {
    krn_graph_section section{id, flags, sizeof(T), 0, 0, records.size()};
    parts_.push_back({section, records.data(), records.size() * sizeof(T)});
  }

  std::vector<uint8_t> bytes() {
    auto align8 = [](uint64_t n) { return (n + 7) & ~uint64_t{7}; };
    uint64_t at = sizeof(krn_graph_header) + parts_.size() * sizeof(krn_graph_section);
    for (Part& part : parts_) {
      part.section.offset = at;
      at = align8(at + part.size);
    }
    std::vector<uint8_t> bytes(at);
    krn_graph_header header{{}, KRN_GRAPH_MAJOR, KRN_GRAPH_MINOR, static_cast<uint32_t>(parts_.size()), at};
    std::memcpy(header.magic, KRN_GRAPH_MAGIC, sizeof(header.magic));
    std::memcpy(bytes.data(), &header, sizeof(header));
    uint8_t* directory = bytes.data() + sizeof(header);
    for (const Part& part : parts_) {
      std::memcpy(directory, &part.section, sizeof(part.section));
      directory += sizeof(part.section);
      if (part.size) std::memcpy(bytes.data() + part.section.offset, part.data, part.size);
    }
    return bytes;
  }

 private:
  struct Part {
    krn_graph_section section;
    const void* data;
    uint64_t size;
  };
  std::vector<Part> parts_;
};

}  // namespace

Result<RegionBytes> write_region(const Graph& graph) {
  Functions functions;
  KRN_TRY(functions.collect(graph));
  RegionBytes out;
  Sections s = Emitter(functions).run(out);
  const std::vector<uint64_t> opset = {KRN_OPSET_VERSION}, none;
  const uint32_t must = KRN_SECTION_MUST_UNDERSTAND;
  Layout layout;
  layout.add(KRN_SECTION_OPSET, opset, must);
  layout.add(KRN_SECTION_SYMBOLS, none, must);
  layout.add(KRN_SECTION_EXPRS, none, must);
  layout.add(KRN_SECTION_TYPES, s.types, must);
  layout.add(KRN_SECTION_DIMS, s.dims, must);
  layout.add(KRN_SECTION_VALUES, s.values, must);
  layout.add(KRN_SECTION_NODES, s.nodes, must);
  layout.add(KRN_SECTION_OPERANDS, s.operands, must);
  layout.add(KRN_SECTION_ATTRS, s.attrs, must);
  layout.add(KRN_SECTION_WORDS, s.words, must);
  layout.add(KRN_SECTION_CHARS, s.chars, must);
  layout.add(KRN_SECTION_FUNCTIONS, s.functions, must);
  layout.add(KRN_SECTION_INPUTS, s.inputs, must);
  layout.add(KRN_SECTION_OUTPUTS, s.outputs, must);
  layout.add(KRN_SECTION_CONSTRAINTS, none, must);
  layout.add(KRN_SECTION_NAMES, s.names, KRN_SECTION_NOT_HASHED);
  layout.add(KRN_SECTION_NAME_CHARS, s.name_chars, KRN_SECTION_NOT_HASHED);
  out.bytes = layout.bytes();
  Result<Hash> hash = hash_region(out.bytes);  // opening our own bytes is cheap and catches a graph that did not verify
  if (!hash.ok())
    return Status(Code::k_internal, {"region: the reader refused what was written", hash.status().message().what,
                                     "the region stays eager", "report it with a dump of the graph (KEIRIN_DUMP=dir)"});
  out.hash = *hash;
  return out;
}

}  // namespace keirin
