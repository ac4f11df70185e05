// SPDX-License-Identifier: Apache-2.0
#include "core/capture/pt2/segments.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

namespace keirin::pt2 {
namespace {

using Names = std::set<std::string, std::less<>>;

constexpr std::string_view kOps = "torch.ops.", kHigherOrder = "torch.ops.higher_order.";

bool is_operator(const Node& node) { return node.target.starts_with(kOps) && !node.target.starts_with(kHigherOrder); }

// "aten.index.Tensor" of "torch.ops.aten.index.Tensor".
std::string_view operator_name(const Node& node) {
  return std::string_view(node.target).substr(is_operator(node) ? kOps.size() : 0);
}

bool is_any_of(std::string_view name, std::initializer_list<std::string_view> list) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

// Numbers that follow from the sizes of what is read, and nodes that only check.
bool reads_sizes(std::string_view op) { return op.starts_with("aten.sym_"); }
bool only_checks(std::string_view op) {
  return op.starts_with("aten._assert_scalar") || op.starts_with("aten._assert_tensor_metadata") ||
         op.starts_with("aten.sym_constrain_range");
}

const Argument* input_named(const Node& node, std::string_view name) {
  for (const NamedArgument& input : node.inputs)
    if (input.name == name) return &input.arg;
  return nullptr;
}

// A mask says by its values how many elements are meant. The file may give the count a name that it has already, where
// it was proved equal to an earlier one: with other values it is another count all the same.
bool indexes_by_mask(const Node& node, const Graph& graph) {
  if (!operator_name(node).starts_with("aten.index.") && !operator_name(node).starts_with("aten.index_put") &&
      !operator_name(node).starts_with("aten._index_put_impl_") &&
      !operator_name(node).starts_with("aten._unsafe_index"))
    return false;
  const Argument* indices = input_named(node, "indices");
  if (indices == nullptr) return false;
  for (const std::string& name : indices->names())
    if (const auto meta = graph.tensor_values.find(name);
        meta != graph.tensor_values.end() && (meta->second.dtype == DType::k_bool || meta->second.dtype == DType::k_u8))
      return true;
  return false;
}

// Operators whose results have as many elements as their operands' values say, whatever the file calls that number.
bool counts_values(const Node& node) {
  const std::string_view op = operator_name(node);
  const std::string_view name = op.substr(0, op.rfind('.'));
  return is_any_of(name, {"aten.nonzero", "aten.nonzero_numpy", "aten.argwhere", "aten.masked_select",
                          "aten.masked_scatter", "aten.masked_scatter_", "aten._unique", "aten._unique2",
                          "aten.unique_dim", "aten.unique_consecutive", "aten.unique_dim_consecutive", "aten.bincount",
                          "aten.item", "aten._local_scalar_dense", "torchvision.nms"}) ||
         op == "aten.repeat_interleave.Tensor" || op == "aten.repeat_interleave.self_Tensor";
}

// Operators that pick by order. Where two values are nearly equal another dtype picks another one, and all that is made
// of it is another matter: a referee in fp64 has nothing to say about the nodes on both sides of one together. No reason
// to cut a program that is one graph, but a place to cut one that is not.
bool picks_by_order(const Node& node) {
  const std::string_view op = operator_name(node);
  return is_any_of(op.substr(0, op.rfind('.')), {"aten.topk", "aten.sort", "aten.argsort"});
}

// Operators that give the tensor itself other sizes or strides. What is read behind a segment has to be what it was
// before it, or another value.
bool changes_form(const Node& node) {
  const std::string_view op = operator_name(node);
  return is_any_of(op.substr(0, op.rfind('.')),
                   {"aten.transpose_", "aten.swapaxes_", "aten.swapdims_", "aten.t_", "aten.squeeze_", "aten.unsqueeze_",
                    "aten.as_strided_", "aten.resize_", "aten.resize_as_", "aten.set_"});
}

void add_symbols(const SymInt& size, Names& to) {
  if (!size.is_literal()) to.insert(size.expr->symbols.begin(), size.expr->symbols.end());
}

// The symbols in the sizes of a value, or in a number.
Names symbols_of(const std::string& name, const Graph& graph) {
  Names out;
  if (const auto tensor = graph.tensor_values.find(name); tensor != graph.tensor_values.end()) {
    for (const SymInt& size : tensor->second.sizes) add_symbols(size, out);
    for (const SymInt& stride : tensor->second.strides) add_symbols(stride, out);
  } else if (const auto number = graph.sym_int_values.find(name); number != graph.sym_int_values.end()) {
    add_symbols(number->second, out);
  }
  return out;
}

bool is_tensor(const std::string& name, const Graph& graph) { return graph.tensor_values.contains(name); }

// The names that higher-order operators pass to their inner graphs, in the order of those graphs' inputs; empty where
// they are not names alone.
std::vector<std::string> operands_of(const Node& node, size_t leading) {
  std::vector<std::string> out;
  for (size_t i = leading; i < node.inputs.size(); ++i)
    for (std::string& name : node.inputs[i].arg.names()) out.push_back(std::move(name));
  return out;
}

bool is_autocast_on(const Node& node) {
  if (!node.target.ends_with(".wrap_with_autocast")) return false;
  const auto* enabled = node.inputs.size() > 2 ? node.inputs[2].arg.get<bool>() : nullptr;
  return enabled == nullptr || *enabled;
}

class Cutter {
 public:
  explicit Cutter(Segments& out) : out_(out) {}

  // `weights`: inputs of the graph that are weights, by name. `symbols` that sizes of its inputs may have, and
  // everything before.
  void cut(const Graph& graph, const Named<std::string>& weights, Names symbols, const std::string& prefix) {
    for (const Argument& input : graph.inputs)
      for (const std::string& name : input.names()) symbols.merge(symbols_of(name, graph));
    std::vector<bool> borders;
    for (const Node& node : graph.nodes) {
      const bool hard = is_border(node, graph, symbols);
      out_.borders += hard;
      borders.push_back(hard || picks_by_order(node) || changes_form(node));
    }
    for (size_t first = 0; first < graph.nodes.size();) {
      size_t end = first;
      while (end < graph.nodes.size() && !borders[end]) ++end;
      if (end > first) add(graph, weights, first, end, prefix);
      if (end < graph.nodes.size()) add_border(graph.nodes[end], graph, weights, symbols, prefix);
      first = end + 1;
    }
  }

 private:
  bool has_border(const Graph& graph, Names symbols) {
    for (const Argument& input : graph.inputs)
      for (const std::string& name : input.names()) symbols.merge(symbols_of(name, graph));
    return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                       [&](const Node& node) { return is_border(node, graph, symbols); });
  }

  // Adds the symbols of its results to `symbols`.
  bool is_border(const Node& node, const Graph& graph, Names& symbols) {
    bool is_new = false;
    for (const std::string& name : node.defines())
      for (const std::string& symbol : symbols_of(name, graph)) is_new |= symbols.insert(symbol).second;
    if (node.target.starts_with(kHigherOrder)) {
      if (is_autocast_on(node)) return true;
      const bool is_scope =
          node.target.ends_with(".wrap_with_set_grad_enabled") || node.target.ends_with(".wrap_with_autocast");
      if (!is_scope) return true;
      for (const NamedArgument& input : node.inputs)
        if (const auto* body = input.arg.get<GraphArg>(); body != nullptr && has_border(*body->graph, symbols))
          return true;
      return false;
    }
    if (!is_operator(node)) return false;
    if (is_new || counts_values(node) || indexes_by_mask(node, graph)) return true;
    // Only sizes are numbers that are known without a run: what is read off a tensor, and what the file says in sizes of the inputs, since
    // no symbol is new (the lengths that an attention keeps for its backward).
    if (reads_sizes(operator_name(node)) || only_checks(operator_name(node))) return false;
    for (const std::string& name : node.defines())
      if (!is_tensor(name, graph) && !graph.sym_int_values.contains(name)) return true;
    return false;
  }

  static int count_operators(std::span<const Node> nodes, const Graph& graph) {
    int count = 0;
    for (const Node& node : nodes) {
      const std::vector<std::string> results = node.defines();
      const bool computes =
          std::any_of(results.begin(), results.end(), [&](const std::string& name) { return is_tensor(name, graph); });
      if (is_operator(node)) count += computes;
      for (const NamedArgument& input : node.inputs)
        if (const auto* body = input.arg.get<GraphArg>()) count += count_operators(body->graph->nodes, *body->graph);
    }
    return count;
  }

  void add_border(const Node& node, const Graph& graph, const Named<std::string>& weights, const Names& symbols,
                  const std::string& prefix) {
    const std::string inner = prefix + node.name + "/";
    if (!node.target.starts_with(kHigherOrder)) {
      out_.operators += count_operators(std::span(&node, 1), graph);
      return;
    }
    if (is_autocast_on(node)) {
      out_.operators += count_operators(std::span(&node, 1), graph);
      return;
    }
    // cond(pred, yes, no, operands), while_loop(test, body, carried, additional), scopes (flags .., body, operands):
    // what comes behind the last inner graph are the operands.
    size_t last_body = 0;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (node.inputs[i].arg.is<GraphArg>()) last_body = i;
    const std::vector<std::string> operands = operands_of(node, last_body + 1);
    const bool loops = node.target.ends_with(".while_loop");
    const size_t carried =
        loops && last_body + 1 < node.inputs.size() ? node.inputs[last_body + 1].arg.names().size() : 0;
    for (size_t i = 0; i <= last_body; ++i) {
      const auto* body = node.inputs[i].arg.get<GraphArg>();
      if (body == nullptr) continue;
      Named<std::string> inner_weights;
      // A carried value is another one in the next round.
      if (operands.size() == body->graph->inputs.size())
        for (size_t k = carried; k < operands.size(); ++k)
          if (const auto weight = weights.find(operands[k]); weight != weights.end())
            for (const std::string& name : body->graph->inputs[k].names()) inner_weights[name] = weight->second;
      cut(*body->graph, inner_weights, symbols, inner);
    }
  }

  void add(const Graph& graph, const Named<std::string>& weights, size_t first, size_t end, const std::string& prefix) {
    Segment segment;
    segment.graph = &graph;
    // Checks and sizes at either end belong to the eager steps around it as well as to the segment: it is shorter
    // without.
    const auto computes = [&](size_t i) { return count_operators(std::span(&graph.nodes[i], 1), graph) > 0; };
    while (first < end && !computes(first)) ++first;
    while (first < end && !computes(end - 1)) --end;
    if (first == end) return;
    segment.first = first, segment.end = end;
    segment.operators = count_operators(std::span(&graph.nodes[first], end - first), graph);
    out_.operators += segment.operators;
    Names defined, read;
    for (size_t i = first; i < end; ++i) {
      for (std::string& name : graph.nodes[i].reads()) {
        if (defined.contains(name) || !read.insert(name).second) continue;
        if (const auto weight = weights.find(name); weight != weights.end()) {
          segment.weights.push_back(name);
          segment.targets.push_back(weight->second);
        } else {
          (is_tensor(name, graph) ? segment.tensors : segment.numbers).push_back(name);
        }
      }
      for (std::string& name : graph.nodes[i].defines()) defined.insert(std::move(name));
    }
    Names behind;
    for (size_t i = end; i < graph.nodes.size(); ++i)
      for (std::string& name : graph.nodes[i].reads()) behind.insert(std::move(name));
    for (const Argument& output : graph.outputs)
      for (std::string& name : output.names()) behind.insert(std::move(name));
    for (size_t i = first; i < end; ++i)
      for (std::string& name : graph.nodes[i].defines())
        if (behind.contains(name))
          (is_tensor(name, graph) ? segment.tensor_results : segment.number_results).push_back(std::move(name));
    // What is decided about is said last: masks, indices, predicates. Their values need not vary (segments.h).
    const auto varies = [&](const std::string& name) {
      const TensorMeta& meta = graph.tensor_values.find(name)->second;
      const bool one = std::all_of(meta.sizes.begin(), meta.sizes.end(),
                                   [](const SymInt& size) { return size.is_literal() && size.value == 1; });
      return !one && is_float(meta.dtype);
    };
    const auto rest = std::stable_partition(segment.tensor_results.begin(), segment.tensor_results.end(), varies);
    segment.varying_results = static_cast<size_t>(rest - segment.tensor_results.begin());
    segment.name = prefix + graph.nodes[first].name;
    if (end - first > 1) segment.name += " .. " + graph.nodes[end - 1].name;
    out_.all.push_back(std::move(segment));
  }

  Segments& out_;
};

// Numbers that are names become literals.
struct Substitute {
  const Named<Number>& numbers;

  template <class Arg>
  void literal(Arg& arg) const {
    if (!arg.is_name()) return;
    const auto number = numbers.find(arg.name);
    if (number == numbers.end()) return;
    arg.name.clear();
    std::visit([&](auto value) { arg.value = static_cast<decltype(arg.value)>(value); }, number->second);
  }
  template <class T>
  void operator()(T&) const {}
  void operator()(SymIntArg& arg) const { literal(arg); }
  void operator()(SymFloatArg& arg) const { literal(arg); }
  void operator()(SymBoolArg& arg) const { literal(arg); }
  void operator()(std::vector<SymIntArg>& list) const {
    for (SymIntArg& arg : list) literal(arg);
  }
  void operator()(std::vector<SymFloatArg>& list) const {
    for (SymFloatArg& arg : list) literal(arg);
  }
  void operator()(std::vector<SymBoolArg>& list) const {
    for (SymBoolArg& arg : list) literal(arg);
  }
};

std::vector<SymInt> literals(const std::vector<int64_t>& values) {
  std::vector<SymInt> out;
  for (const int64_t value : values) out.push_back({value, nullptr, {}});
  return out;
}

}  // namespace

Segments find_segments(const Program& program) {
  Segments out;
  Named<std::string> weights;
  for (const InputSpec& input : program.inputs) {
    const bool is_weight = input.kind == InputSpec::Kind::kParameter || input.kind == InputSpec::Kind::kBuffer ||
                           input.kind == InputSpec::Kind::kTensorConstant;
    for (std::string& name : input.arg.names()) {
      if (is_weight)
        weights[name] = input.target;
      else if (input.kind == InputSpec::Kind::kUserInput && !is_tensor(name, program.graph))
        out.takes_numbers = true;
    }
  }
  Cutter(out).cut(program.graph, weights, {}, "");
  return out;
}

Program segment_program(const Program& program, const Segment& segment, std::span<const TensorSpec> tensors,
                        std::span<const Number> numbers, const Named<KnownSizes>& known, bool with_numbers) {
  const Graph& graph = *segment.graph;
  Program out;
  out.name = program.name;
  out.torch_version = program.torch_version;
  out.schema_major = program.schema_major, out.schema_minor = program.schema_minor;
  out.dialect = program.dialect;
  out.opset_version = program.opset_version;
  Named<Number> values;
  for (size_t i = 0; i < segment.numbers.size(); ++i) values[segment.numbers[i]] = numbers[i];
  const auto add_value = [&](const std::string& name) {
    if (const auto tensor = graph.tensor_values.find(name); tensor != graph.tensor_values.end()) {
      TensorMeta meta = tensor->second;
      if (const auto sizes = known.find(name); sizes != known.end()) {
        meta.sizes = literals(sizes->second.sizes);
        if (sizes->second.strides.size() == sizes->second.sizes.size()) meta.strides = literals(sizes->second.strides);
      }
      out.graph.tensor_values.emplace(name, std::move(meta));
    }
    if (const auto number = graph.sym_int_values.find(name); number != graph.sym_int_values.end())
      out.graph.sym_int_values.insert(*number);
    if (const auto number = graph.sym_float_values.find(name); number != graph.sym_float_values.end())
      out.graph.sym_float_values.insert(*number);
    if (const auto number = graph.sym_bool_values.find(name); number != graph.sym_bool_values.end())
      out.graph.sym_bool_values.insert(*number);
  };
  const auto add_input = [&](const std::string& name, InputSpec spec) {
    spec.arg.value = TensorArg{name};
    out.graph.inputs.push_back(spec.arg);
    out.inputs.push_back(std::move(spec));
    add_value(name);
  };
  for (size_t i = 0; i < segment.weights.size(); ++i) {
    InputSpec spec;
    for (const InputSpec& input : program.inputs)
      if (input.kind != InputSpec::Kind::kUserInput && input.target == segment.targets[i]) spec = input;
    add_input(segment.weights[i], std::move(spec));
  }
  for (size_t i = 0; i < segment.tensors.size(); ++i) {
    const std::string& name = segment.tensors[i];
    add_input(name, {});
    TensorMeta& meta = out.graph.tensor_values.find(name)->second;
    meta.dtype = tensors[i].dtype;
    meta.sizes = literals(tensors[i].sizes);
    meta.strides = literals(tensors[i].strides);
  }
  for (size_t i = segment.first; i < segment.end; ++i) {
    Node node = graph.nodes[i];
    for (NamedArgument& input : node.inputs) std::visit(Substitute{values}, input.arg.value);
    for (const std::string& name : node.defines()) add_value(name);
    out.graph.nodes.push_back(std::move(node));
  }
  const auto add_output = [&](Argument arg) {
    OutputSpec spec;
    spec.arg = arg;
    out.graph.outputs.push_back(std::move(arg));
    out.outputs.push_back(std::move(spec));
  };
  for (const std::string& name : segment.tensor_results) add_output({TensorArg{name}});
  if (with_numbers)
    for (const std::string& name : segment.number_results) {
      if (graph.sym_float_values.contains(name))
        add_output({SymFloatArg{name, 0}});
      else if (graph.sym_bool_values.contains(name))
        add_output({SymBoolArg{name, false}});
      else
        add_output({SymIntArg{name, 0}});
    }
  return out;
}

}  // namespace keirin::pt2
