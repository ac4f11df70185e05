// SPDX-License-Identifier: Apache-2.0
#include "core/capture/pt2/check_program.h"

#include <set>

namespace keirin::pt2 {
namespace {

Status corrupt(std::string what, std::string where) {
  return Status(Code::k_corrupt, {std::move(what), std::move(where), "nothing was loaded", "save the file again"});
}

class GraphCheck {
 public:
  GraphCheck(const Graph& graph, std::string path) : graph_(graph), path_(std::move(path)) {}

  Status run() {
    for (size_t i = 0; i < graph_.inputs.size(); ++i)
      KRN_TRY(input(graph_.inputs[i], path_ + ".inputs[" + std::to_string(i) + "]"));
    for (size_t i = 0; i < graph_.nodes.size(); ++i) KRN_TRY(node(graph_.nodes[i], i));
    for (size_t i = 0; i < graph_.outputs.size(); ++i)
      for (const std::string& name : graph_.outputs[i].names())
        if (!defined_.contains(name)) return undefined(name, path_ + ".outputs[" + std::to_string(i) + "]");
    return {};
  }

 private:
  static Status undefined(const std::string& name, std::string where) {
    return corrupt("the value \"" + name + "\" is used before it is defined", std::move(where));
  }

  Status define(const Argument& arg, const std::string& where) {
    for (std::string& name : arg.names()) {
      auto [it, fresh] = defined_.insert(std::move(name));
      if (!fresh) return corrupt("the value \"" + *it + "\" is defined twice", where);
    }
    return {};
  }

  Status input(const Argument& arg, const std::string& where) {
    const TensorArg* tensor = arg.get<TensorArg>();
    if (tensor != nullptr && !graph_.tensor_values.contains(tensor->name))
      return corrupt("the input \"" + tensor->name + "\" has no entry in tensor_values", where);
    return define(arg, where);
  }

  Status node(const Node& node, size_t index) {
    auto where = [&] {
      return path_ + ".nodes[" + std::to_string(index) + "] (byte " + std::to_string(node.json_byte) + ")";
    };
    for (const NamedArgument& in : node.inputs) {
      for (const std::string& name : in.arg.names())
        if (!defined_.contains(name)) return undefined(name, where());
      KRN_TRY(inner(in.arg, where));
    }
    for (const Argument& out : node.outputs)
      for (std::string& name : out.names()) {
        auto [it, fresh] = defined_.insert(std::move(name));
        if (!fresh) return corrupt("the value \"" + *it + "\" is defined twice", where());
      }
    return {};
  }

  // Inner graphs have names of their own.
  template <class Where>
  static Status inner(const Argument& arg, const Where& where) {
    if (const GraphArg* g = arg.get<GraphArg>()) return GraphCheck(*g->graph, where() + ": " + g->name).run();
    if (const DictArg* d = arg.get<DictArg>())
      for (const auto& [key, value] : d->items) KRN_TRY(inner(value, where));
    return {};
  }

  const Graph& graph_;
  std::string path_;
  std::set<std::string, std::less<>> defined_;
};

// What an output may write to or be the gradient of.
struct Targets {
  std::set<std::string, std::less<>> parameters, buffers, user_inputs;
};

Targets collect(const Program& program) {
  Targets t;
  for (const InputSpec& in : program.inputs) {
    if (in.kind == InputSpec::Kind::kParameter) t.parameters.insert(in.target);
    if (in.kind == InputSpec::Kind::kBuffer) t.buffers.insert(in.target);
    if (in.kind == InputSpec::Kind::kUserInput)
      for (std::string& name : in.arg.names()) t.user_inputs.insert(std::move(name));
  }
  return t;
}

bool target_exists(const OutputSpec& out, const Targets& targets) {
  using Kind = OutputSpec::Kind;
  switch (out.kind) {
    case Kind::kBufferMutation:
      return targets.buffers.contains(out.target);
    case Kind::kParameterMutation:
    case Kind::kGradientToParameter:
      return targets.parameters.contains(out.target);
    case Kind::kUserInputMutation:
    case Kind::kGradientToUserInput:
      return targets.user_inputs.contains(out.target);
    case Kind::kUserOutput:
    case Kind::kLossOutput:
      break;
  }
  return true;
}

Status check_tree(const TreeSpec& tree, uint64_t leaves, const char* field) {
  if (tree.num_leaves() == leaves) return {};
  return corrupt(std::string("the tree ") + field + " has " + std::to_string(tree.num_leaves()) +
                     " leaves, the signature " + std::to_string(leaves),
                 "graph_module.module_call_graph[0].signature");
}

Status check_trees(const Program& program) {
  if (!program.has_tree_specs) return {};
  uint64_t ins = 0, outs = 0;
  for (const InputSpec& in : program.inputs)
    ins += in.kind == InputSpec::Kind::kUserInput || in.kind == InputSpec::Kind::kConstantInput;
  for (const OutputSpec& out : program.outputs)
    outs += out.kind == OutputSpec::Kind::kUserOutput || out.kind == OutputSpec::Kind::kLossOutput;
  KRN_TRY(check_tree(program.in_spec, ins, "in_spec"));
  bool joint = false;  // a training graph returns gradients that the module's own out_spec does not have
  for (const OutputSpec& out : program.outputs)
    joint |= out.kind == OutputSpec::Kind::kLossOutput || out.kind == OutputSpec::Kind::kGradientToParameter;
  return joint ? Status() : check_tree(program.out_spec, outs, "out_spec");
}

}  // namespace

Status check_program(const Program& program) {
  KRN_TRY(GraphCheck(program.graph, "graph_module.graph").run());
  Targets targets = collect(program);
  for (size_t i = 0; i < program.outputs.size(); ++i)
    if (!target_exists(program.outputs[i], targets))
      return corrupt("the output writes to \"" + program.outputs[i].target + "\", which is not an input of its kind",
                     "graph_module.signature.output_specs[" + std::to_string(i) + "]");
  return check_trees(program);
}

}  // namespace keirin::pt2
