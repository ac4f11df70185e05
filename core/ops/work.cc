// SPDX-License-Identifier: Apache-2.0
#include "core/ops/work.h"

#include <algorithm>
#include <map>

namespace keirin {
namespace {

double elements(const Type& type) { return static_cast<double>(type.num_elements()); }
double bytes_of(const Type& type) { return static_cast<double>(type.bytes()); }

// The first operand is read where the results, or the other operands, say: what an operator reads of it at most. All of it: -1.
double picked_bytes(const Graph& graph, const Op& op) {
  switch (op.code) {
    case OpCode::k_take:
    case OpCode::k_gather:
    case OpCode::k_slice: return bytes_of(graph.type(op.results[0]));
    case OpCode::k_embedding_bag: {
      const Type& table = graph.type(op.operands[0]);
      return elements(graph.type(op.operands[1])) * static_cast<double>(table.sizes.back()) * dtype_bytes(table.dtype);
    }
    default: return -1;
  }
}

// Whether the operator's result is its first operand with some of it written anew: in place, the rest is neither read nor written.
bool writes_a_part(OpCode code) {
  return code == OpCode::k_slice_scatter || code == OpCode::k_index_reduce || code == OpCode::k_scatter;
}

}  // namespace

void Work::add(const Contraction& contraction) {
  if (contraction.flops <= 0) return;
  for (Contraction& each : contractions)
    if (each.convolution == contraction.convolution && each.dtype == contraction.dtype) {
      each.flops += contraction.flops;
      return;
    }
  contractions.push_back(contraction);
}

Contraction contraction_of(const Graph& graph, const Op& op) {
  const auto type = [&](size_t operand) -> const Type& { return graph.type(op.operands[operand]); };
  Contraction out;
  switch (op.code) {
    case OpCode::k_matmul:
    case OpCode::k_linear:
    case OpCode::k_grouped_matmul:  // each row meets one of the weights
      out.flops = 2 * elements(graph.type(op.results[0])) * static_cast<double>(type(0).sizes.back());
      break;
    case OpCode::k_conv: {
      // A result is a sum over a filter of [in / groups, kernel...]; transposed, each element of the input meets one of [out / groups,
      // kernel...].
      const Type& weight = type(1);
      const Type& meets = op.b(AttrKey::k_transposed) ? type(0) : graph.type(op.results[0]);
      out.convolution = true;
      out.flops = 2 * elements(meets) * elements(weight) / static_cast<double>(std::max<int64_t>(1, weight.sizes[0]));
      break;
    }
    case OpCode::k_conv_grad_weight: {  // each element of the gradient meets a filter's worth of x
      const Type& weight = graph.type(op.results[0]);
      out.convolution = true;
      out.flops = 2 * elements(type(1)) * elements(weight) / static_cast<double>(std::max<int64_t>(1, weight.sizes[0]));
      break;
    }
    case OpCode::k_attention: {
      const Type &q = type(0), &k = type(1), &v = type(2);
      const auto of = [](const Type& t, int from_end) { return t.sizes[t.sizes.size() - static_cast<size_t>(from_end)]; };
      const int64_t rows = of(q, 2), columns = of(k, 2), width = of(q, 1);
      if (rows == 0 || width == 0) break;
      double pairs = static_cast<double>(rows) * static_cast<double>(columns);
      if (op.b(AttrKey::k_causal)) {  // row i meets columns 0..i
        const int64_t growing = std::min(rows, columns);
        pairs = static_cast<double>(growing) * static_cast<double>(growing + 1) / 2 +
                static_cast<double>(rows - growing) * static_cast<double>(columns);
      }
      const double heads = elements(q) / static_cast<double>(rows * width);
      out.flops = 2 * heads * pairs * static_cast<double>(width + of(v, 1));
      break;
    }
    case OpCode::k_lstm:
    case OpCode::k_gru: {
      const Type& x = type(0);
      const double vectors = x.sizes.back() > 0 ? elements(x) / static_cast<double>(x.sizes.back()) : 0;
      for (size_t i = 1; i < op.operands.size(); ++i)
        if (op.operands[i] != kNone && type(i).rank() == 2 && graph.values[op.operands[i]].kind != ValueKind::kInput)
          out.flops += 2 * vectors * elements(type(i));
      break;
    }
    default: return out;
  }
  out.dtype = type(0).dtype;
  return out;
}

Work least_work(const Graph& graph) {
  Work out;
  std::map<ValueId, double> read;  // of inputs, weights and state
  const auto comes_from_memory = [&](ValueId v) { return v != kNone && graph.values[v].kind != ValueKind::kResult; };
  for (const Op& op : graph.ops) {
    out.add(contraction_of(graph, op));
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const ValueId v = op.operands[i];
      if (!comes_from_memory(v)) continue;
      const double all = bytes_of(graph.type(v)), picked = i == 0 ? picked_bytes(graph, op) : -1;
      double& seen = read[v];
      seen = std::min(all, seen + (picked < 0 ? all : picked));
    }
  }
  for (const auto& [value, bytes] : read) out.bytes += bytes;
  for (const Output& output : graph.outputs) {
    const Value& value = graph.values[output.value];
    if (value.kind != ValueKind::kResult) continue;  // handed on as it is
    const Op& producer = graph.ops[value.producer];
    const bool in_part = output.updates != kNone && writes_a_part(producer.code) && producer.operands[0] == output.updates;
    out.bytes += bytes_of(in_part ? graph.type(producer.operands.back()) : value.type);
  }
  return out;
}

Work least_work(const Graph& graph, const Op& op) {
  Work out;
  out.add(contraction_of(graph, op));
  for (size_t i = 0; i < op.operands.size(); ++i) {
    if (op.operands[i] == kNone) continue;
    const double all = bytes_of(graph.type(op.operands[i])), picked = i == 0 ? picked_bytes(graph, op) : -1;
    out.bytes += picked < 0 ? all : std::min(all, picked);
  }
  for (const ValueId result : op.results) out.bytes += bytes_of(graph.type(result));
  return out;
}

}  // namespace keirin
