// SPDX-License-Identifier: Apache-2.0
//
// An Evaluator over a table of doubles, with the few rows that folding needs: so that passes are tested without torch.
// A row it does not know is an error, never a guess.
#pragma once

#include <cmath>
#include <map>

#include "core/passes/evaluator.h"
#include "core/passes/facts.h"

namespace keirin::testing {

class FakeEvaluator : public Evaluator {
 public:
  std::vector<std::vector<double>> table;

  Result<std::vector<double>> read(uint32_t index) override {
    if (index >= table.size() || table[index].empty()) return Status(Code::k_unsupported, "no such constant");
    return table[index];
  }

  Result<std::vector<FoldedConstant>> evaluate(const Graph& graph) override {
    std::map<ValueId, std::vector<double>> values;
    for (ValueId v = 0; v < graph.values.size(); ++v) {
      if (graph.values[v].kind != ValueKind::kConstant) continue;
      KRN_TRY_LET(values[v], read(graph.values[v].index));
    }
    for (const Op& op : graph.ops) {
      KRN_TRY_LET(values[op.results[0]], compute(graph, op, values));
    }
    std::vector<FoldedConstant> folded;
    for (const Output& output : graph.outputs) {
      Type type = graph.type(output.value);
      type.strides = contiguous_strides(type.sizes);
      folded.push_back({static_cast<uint32_t>(table.size()), type});
      table.push_back(values[output.value]);
    }
    return folded;
  }

  Result<FoldedConstant> store(const std::vector<double>& values, DType dtype, const Dims& sizes) override {
    FoldedConstant folded{static_cast<uint32_t>(table.size()), {dtype, sizes, contiguous_strides(sizes)}};
    table.push_back(values);
    for (double& value : table.back()) value = round_to(dtype, value);
    return folded;
  }

  Result<FoldedConstant> scale(uint32_t index, const Type& type, size_t axis, const std::vector<double>& factors) override {
    KRN_TRY_LET(std::vector<double> values, read(index));
    size_t inner = 1;
    for (size_t d = axis + 1; d < type.sizes.size(); ++d) inner *= static_cast<size_t>(type.sizes[d]);
    for (size_t i = 0; i < values.size(); ++i) values[i] *= factors[i / inner % factors.size()];
    return store(values, type.dtype, type.sizes);
  }

 private:
  static Result<std::vector<double>> compute(const Graph& graph, const Op& op, std::map<ValueId, std::vector<double>>& values) {
    const Type& type = graph.type(op.results[0]);
    std::vector<double> out;
    auto x = [&](size_t k, int64_t i) { return values[op.operands[k]][static_cast<size_t>(i)]; };
    if (op.code == OpCode::k_cat && op.i(AttrKey::k_dim) == 0) {
      for (ValueId v : op.operands) out.insert(out.end(), values[v].begin(), values[v].end());
      return out;
    }
    for (int64_t i = 0; i < type.num_elements(); ++i) {
      double y = 0;
      switch (op.code) {
        case OpCode::k_full: y = is_float(type.dtype) ? op.d(AttrKey::k_value_d) : static_cast<double>(op.i(AttrKey::k_value_i)); break;
        case OpCode::k_add: y = x(0, i) + x(1, i); break;
        case OpCode::k_sub: y = x(0, i) - x(1, i); break;
        case OpCode::k_mul: y = x(0, i) * x(1, i); break;
        case OpCode::k_neg: y = -x(0, i); break;
        case OpCode::k_exp: y = std::exp(x(0, i)); break;
        case OpCode::k_sqrt: y = std::sqrt(x(0, i)); break;
        case OpCode::k_reciprocal: y = 1 / x(0, i); break;
        case OpCode::k_cast: case OpCode::k_reshape: y = x(0, i); break;
        case OpCode::k_expand: y = x(0, broadcast(i, type.sizes, graph.type(op.operands[0]).sizes)); break;
        default: return Status(Code::k_unsupported, "the fake evaluator has no such row");
      }
      out.push_back(round_to(type.dtype, y));
    }
    return out;
  }

  // Position in the operand of element i of its expansion.
  static int64_t broadcast(int64_t i, const Dims& to, const Dims& from) {
    int64_t at = 0, step = 1;
    for (size_t k = to.size(); k-- > 0;) {
      if (from[k] != 1) at += i % to[k] * step;
      step *= from[k];
      i /= to[k];
    }
    return at;
  }
};

}  // namespace keirin::testing
