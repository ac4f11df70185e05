// SPDX-License-Identifier: Apache-2.0
#include "core/capture/pt2/counted_values.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <vector>

namespace keirin::pt2 {
namespace {

using Names = std::set<std::string, std::less<>>;

constexpr std::string_view kAten = "torch.ops.aten.";

// Their numbers are the processor's generator's.
bool draws(std::string_view target) {
  constexpr std::array kDraw = {"rand", "bernoulli", "multinomial", "normal", "dropout", "uniform", "exponential", "poisson", "cauchy",
                                "geometric", "log_normal", "native_dropout", "rrelu", "binomial", "alpha_dropout", "feature_dropout"};
  const std::string_view name = target.substr(kAten.size());
  return std::any_of(kDraw.begin(), kDraw.end(), [&](std::string_view word) { return name.starts_with(word); });
}

class Counter {
 public:
  Counter(Graph& graph, const Device& device) : graph_(graph), device_(device), made_(graph.nodes.size(), false) {}

  void run() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) made_[n] = may_be_made(graph_.nodes[n]);
    for (bool changed = true; changed;) {
      changed = false;
      Names read_elsewhere;  // by what stays
      for (const Argument& output : graph_.outputs)
        for (std::string& name : output.names()) read_elsewhere.insert(std::move(name));
      for (size_t n = 0; n < graph_.nodes.size(); ++n) {
        if (made_[n] || is_check(graph_.nodes[n]) || is_on_device(graph_.nodes[n])) continue;
        for (std::string& name : graph_.nodes[n].reads()) read_elsewhere.insert(std::move(name));
      }
      Names made;
      for (size_t n = 0; n < graph_.nodes.size(); ++n) {
        if (!made_[n]) continue;
        const auto is_read = [&](const std::string& name) { return read_elsewhere.contains(name); };
        const auto is_given = [&](const std::string& name) { return is_tensor(name) && !made.contains(name); };
        const std::vector<std::string> results = graph_.nodes[n].defines(), operands = graph_.nodes[n].reads();
        if (std::any_of(results.begin(), results.end(), is_read) || std::any_of(operands.begin(), operands.end(), is_given)) {
          made_[n] = false, changed = true;
          continue;
        }
        made.insert(results.begin(), results.end());
      }
    }
    Names moved;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (!made_[n]) continue;
      for (std::string& name : graph_.nodes[n].defines()) {
        graph_.tensor_values.find(name)->second.device = device_;
        moved.insert(std::move(name));
      }
      for (NamedArgument& input : graph_.nodes[n].inputs)
        if (input.arg.is<Device>()) input.arg.value = device_;
    }
    std::erase_if(graph_.nodes, [&](const Node& node) {
      const std::vector<std::string> operands = node.reads();
      return is_check(node) && std::any_of(operands.begin(), operands.end(), [&](const std::string& name) { return moved.contains(name); });
    });
  }

 private:
  // Of a tensor's dtype and device, in front of a conversion.
  static bool is_check(const Node& node) { return node.target.starts_with("torch.ops.aten._assert_tensor_metadata"); }
  bool is_tensor(const std::string& name) const { return graph_.tensor_values.contains(name); }

  bool all_results(const Node& node, bool on_processor) const {
    const std::vector<std::string> results = node.defines();
    return !results.empty() && std::all_of(results.begin(), results.end(), [&](const std::string& name) {
      const auto meta = graph_.tensor_values.find(name);
      return meta != graph_.tensor_values.end() && (meta->second.device.type == "cpu") == on_processor;
    });
  }
  bool is_on_device(const Node& node) const { return all_results(node, false); }

  // A factory that names no device would make its tensor on the processor whatever is written here.
  bool may_be_made(const Node& node) const {
    if (!node.target.starts_with(kAten) || draws(node.target) || !all_results(node, true)) return false;
    const std::vector<std::string> operands = node.reads();
    const bool is_factory = std::none_of(operands.begin(), operands.end(), [&](const std::string& name) { return is_tensor(name); });
    return !is_factory || std::any_of(node.inputs.begin(), node.inputs.end(),
                                      [](const NamedArgument& input) { return input.arg.is<Device>(); });
  }

  Graph& graph_;
  const Device device_;
  std::vector<bool> made_;
};

}  // namespace

void count_on_device(Program& program) {
  const auto elsewhere = std::find_if(program.graph.tensor_values.begin(), program.graph.tensor_values.end(),
                                      [](const auto& value) { return value.second.device.type != "cpu"; });
  if (elsewhere != program.graph.tensor_values.end()) Counter(program.graph, elsewhere->second.device).run();
}

}  // namespace keirin::pt2
