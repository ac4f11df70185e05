// SPDX-License-Identifier: Apache-2.0
#include "plugins/reference/interpreter.h"

#include <cstring>

#include "plugins/reference/node.h"

namespace keirin::reference {
namespace {

void round_results(Array& a, bool observed) {
  // Unobserved half-precision values are what fused code keeps: f32.
  const bool half = a.dtype == k_f16 || a.dtype == k_bf16;
  const uint8_t precision = half && !observed ? static_cast<uint8_t>(k_f32) : a.dtype;
  if (precision == k_f64) return;
  for (double& v : a.d) v = round_to(v, precision);
  for (int64_t& v : a.i) v = wrap_to(v, a.dtype);
}

Arrays evaluate(const Node& node) {
  using Family = Arrays (*)(const Node&);
  for (Family family : {scalar_row, move_row, reduce_row, contraction_row, window_row, norm_row, rnn_row}) {
    Arrays results = family(node);
    if (!results.empty()) return results;
  }
  throw kit::Error(KRN_STATUS_unsupported, "op " + std::to_string(node.op()) + " is not a row of this interpreter");
}

}  // namespace

bool computes(uint32_t op) {
  switch (op) {
#define KRN_SCALAR(id, ...) case id:
#define KRN_REDUCE(id, ...) case id:
#define KRN_MOVE(id, ...) case id:
#define KRN_FACTORY(id, ...) case id:
#define KRN_COMPOSITE(id, ...) case id:
#include "abi/ops.def"
#undef KRN_SCALAR
#undef KRN_REDUCE
#undef KRN_MOVE
#undef KRN_FACTORY
#undef KRN_COMPOSITE
    return true;
    default:
      return false;
  }
}

Interpreter::Interpreter(krn_span bytes) : bytes_((bytes.size + 7) / 8) {
  if (bytes.size > 0) std::memcpy(bytes_.data(), bytes.data, bytes.size);
  if (int32_t line = krn_graph_open(bytes_.data(), bytes.size, &graph_); line != 0)
    throw kit::Error(KRN_STATUS_corrupt, "the region's bytes do not open (check " + std::to_string(line) + ")");
  const krn_gfunction* region = krn_graph_function(&graph_, 0);
  last_use_.assign(krn_graph_count(&graph_, KRN_SECTION_VALUES), KRN_NONE);
  for (uint32_t k = 0; k < region->num_nodes; ++k) {
    const krn_gnode* node = krn_graph_node(&graph_, region->first_node + k);
    if (!computes(node->op)) throw kit::Error(KRN_STATUS_unsupported, "node " + std::to_string(k) + " is opaque");
    for (uint32_t o = 0; o < node->num_operands; ++o)
      if (uint32_t v = krn_graph_operand(&graph_, node, o); v != KRN_NONE) last_use_[v] = k;
  }
  for (uint32_t k = 0; k < region->num_outputs; ++k)
    last_use_[krn_graph_output(&graph_, region->first_output + k)->value] = KRN_NONE;
}

void Interpreter::run(const krn_tensor* inputs, uint32_t num_inputs, const krn_tensor* outputs,
                      uint32_t num_outputs) const {
  const krn_gfunction* region = krn_graph_function(&graph_, 0);
  if (num_inputs != region->num_inputs || num_outputs != region->num_outputs)
    throw kit::Error(KRN_STATUS_invalid_input, "the run has another number of tensors than the region");
  std::vector<Array> values(last_use_.size());
  for (uint32_t k = 0; k < num_inputs; ++k) {
    const uint32_t v = krn_graph_input(&graph_, region->first_input + k)->value;
    const krn_gtype* type = krn_graph_value_type(&graph_, v);
    values[v] = load(inputs[k], type->dtype);
    const int64_t* sizes = krn_graph_sizes(&graph_, type);
    if (values[v].sizes != Dims(sizes, sizes + type->rank))
      throw kit::Error(KRN_STATUS_invalid_input,
                       "input " + std::to_string(k) + " has other sizes than the graph states");
  }
  for (uint32_t k = 0; k < region->num_nodes; ++k) {
    const krn_gnode* node = krn_graph_node(&graph_, region->first_node + k);
    std::vector<const Array*> operands;
    for (uint32_t o = 0; o < node->num_operands; ++o) {
      const uint32_t v = krn_graph_operand(&graph_, node, o);
      operands.push_back(v == KRN_NONE ? nullptr : &values[v]);
    }
    Arrays results = evaluate(Node(graph_, *node, operands));
    for (uint32_t r = 0; r < node->num_results; ++r) {
      const uint32_t v = node->first_result + r;
      round_results(results.at(r), (krn_graph_value(&graph_, v)->flags & KRN_VALUE_OBSERVED) != 0);
      values[v] = std::move(results[r]);
    }
    for (uint32_t o = 0; o < node->num_operands; ++o)
      if (uint32_t v = krn_graph_operand(&graph_, node, o); v != KRN_NONE && last_use_[v] == k) values[v] = Array{};
  }
  for (uint32_t k = 0; k < num_outputs; ++k) {
    Array& value = values[krn_graph_output(&graph_, region->first_output + k)->value];
    round_results(value, true);  // in memory a value has its dtype, observed or not
    store(value, outputs[k]);
  }
}

}  // namespace keirin::reference
