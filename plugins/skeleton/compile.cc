// SPDX-License-Identifier: Apache-2.0
//
// From the region's bytes to a program: walk the nodes, give every result a buffer. Here a vendor calls its compiler.
#include <map>

#include "device.h"

namespace skeleton {

Program compile(const krn_graph& graph) {
  const krn_gfunction& top = *krn_graph_function(&graph, 0);
  Program program;
  program.num_inputs = top.num_inputs;
  program.num_outputs = top.num_outputs;
  std::map<uint32_t, uint32_t> buffers;
  for (uint32_t i = 0; i < top.num_inputs; ++i) buffers[krn_graph_input(&graph, top.first_input + i)->value] = i;
  for (uint32_t o = 0; o < top.num_outputs; ++o) {
    const krn_goutput& output = *krn_graph_output(&graph, top.first_output + o);
    bool fresh = buffers.emplace(output.value, top.num_inputs + o).second;
    if (!fresh || output.alias_input != KRN_NONE) {
      throw keirin::kit::Error(KRN_STATUS_unsupported, "the skeleton writes each output once and updates no input");
    }
  }
  uint32_t next = top.num_inputs + top.num_outputs;
  for (uint32_t n = top.first_node; n < top.first_node + top.num_nodes; ++n) {
    const krn_gnode& node = *krn_graph_node(&graph, n);
    if (std::string why = why_not(graph, node); !why.empty()) throw keirin::kit::Error(KRN_STATUS_unsupported, why);
    Instruction i;
    i.op = node.op;
    const krn_gtype& type = *krn_graph_value_type(&graph, node.first_result);
    i.elements = 1;
    for (int d = 0; d < type.rank; ++d) i.elements *= krn_graph_sizes(&graph, &type)[d];
    i.a = buffers.at(krn_graph_operand(&graph, &node, 0));
    i.b = node.num_operands > 1 ? buffers.at(krn_graph_operand(&graph, &node, 1)) : i.a;
    auto [place, fresh] = buffers.emplace(node.first_result, next);
    if (fresh) {
      ++next;
      program.temp_offsets.push_back(program.workspace_bytes);
      program.workspace_bytes += (i.elements * 4 + 63) / 64 * 64;
    }
    i.out = place->second;
    program.instructions.push_back(i);
  }
  return program;
}

}  // namespace skeleton
