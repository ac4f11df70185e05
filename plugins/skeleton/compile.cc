// SPDX-License-Identifier: Apache-2.0
//
// From the region's bytes to a program: walk the nodes, give every result a buffer. Here a vendor calls its compiler. A value may be an
// output twice, an input may be an output, and an output may have to be written into an input: those are copied, the last kind at the
// very end, when nobody reads the old value any more.
#include <map>

#include "device.h"

namespace skeleton_plugin {
namespace {

class Compiler {
 public:
  explicit Compiler(const krn_graph& graph) : graph_(graph), top_(*krn_graph_function(&graph, 0)) {}

  Program compile() {
    program_.num_inputs = top_.num_inputs;
    program_.num_outputs = top_.num_outputs;
    for (uint32_t i = 0; i < top_.num_inputs; ++i) buffers_[krn_graph_input(&graph_, top_.first_input + i)->value] = i;
    std::vector<uint32_t> copied, updates;
    for (uint32_t o = 0; o < top_.num_outputs; ++o) {
      const krn_goutput& output = *krn_graph_output(&graph_, top_.first_output + o);
      if (output.alias_input != KRN_NONE) updates.push_back(o);
      else if (!buffers_.emplace(output.value, top_.num_inputs + o).second) copied.push_back(o);
    }
    for (uint32_t n = top_.first_node; n < top_.first_node + top_.num_nodes; ++n) add_node(*krn_graph_node(&graph_, n));
    for (uint32_t o : copied) copy(value_of(o), buffers_.at(value_of(o)), top_.num_inputs + o);
    std::vector<uint32_t> new_values;
    for (uint32_t o : updates) {
      new_values.push_back(add_temp(value_of(o)));
      copy(value_of(o), buffers_.at(value_of(o)), new_values.back());
    }
    for (size_t i = 0; i < updates.size(); ++i) copy(value_of(updates[i]), new_values[i], top_.num_inputs + updates[i]);
    return std::move(program_);
  }

 private:
  void add_node(const krn_gnode& node) {
    if (std::string why = why_not(graph_, node); !why.empty()) throw keirin::kit::Error(KRN_STATUS_unsupported, why);
    Instruction i;
    i.op = node.op;
    i.elements = elements_of(node.first_result);
    i.a = buffers_.at(krn_graph_operand(&graph_, &node, 0));
    i.b = node.num_operands > 1 ? buffers_.at(krn_graph_operand(&graph_, &node, 1)) : i.a;
    auto place = buffers_.find(node.first_result);
    if (place == buffers_.end()) place = buffers_.emplace(node.first_result, add_temp(node.first_result)).first;
    i.out = place->second;
    program_.instructions.push_back(i);
  }

  void copy(uint32_t value, uint32_t from, uint32_t to) {
    if (!is_plain(graph_, value)) throw keirin::kit::Error(KRN_STATUS_unsupported, "only contiguous f32");
    program_.instructions.push_back({kCopy, from, from, to, elements_of(value)});
  }

  uint32_t add_temp(uint32_t value) {
    program_.temp_offsets.push_back(program_.workspace_bytes);
    program_.workspace_bytes += (elements_of(value) * 4 + 63) / 64 * 64;
    return top_.num_inputs + top_.num_outputs + static_cast<uint32_t>(program_.temp_offsets.size()) - 1;
  }

  uint32_t value_of(uint32_t output) const { return krn_graph_output(&graph_, top_.first_output + output)->value; }

  int64_t elements_of(uint32_t value) const {
    const krn_gtype& type = *krn_graph_value_type(&graph_, value);
    int64_t elements = 1;
    for (int d = 0; d < type.rank; ++d) elements *= krn_graph_sizes(&graph_, &type)[d];
    return elements;
  }

  const krn_graph& graph_;
  const krn_gfunction& top_;
  std::map<uint32_t, uint32_t> buffers_;  // by value
  Program program_;
};

}  // namespace

Program compile(const krn_graph& graph) { return Compiler(graph).compile(); }

}  // namespace skeleton_plugin
