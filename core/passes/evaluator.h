// SPDX-License-Identifier: Apache-2.0
//
// What constant folding needs from whoever can compute: an interface, so that passes include no torch and no plugin.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/ir/graph.h"

namespace keirin {

// An entry that was added to the model's table of constants. Its strides are those of the tensor as it is stored.
struct FoldedConstant {
  uint32_t index = 0;
  Type type;
};

class Evaluator {
 public:
  virtual ~Evaluator() = default;
  // Computes a Graph that has no inputs and no opaque ops, only constants, and adds each output to the model's table.
  // An error leaves the table as it was; the caller leaves the graph unfolded.
  virtual Result<std::vector<FoldedConstant>> evaluate(const Graph& graph) = 0;
  // The elements of constant `index` in row-major order as double. Only asked for small ones; `unsupported` is a fine answer.
  virtual Result<std::vector<double>> read(uint32_t index) = 0;
  // Adds the values, row-major and rounded to the dtype, as a constant of these sizes.
  virtual Result<FoldedConstant> store(const std::vector<double>& values, DType dtype, const Dims& sizes) = 0;
  // Adds constant `index`, which is of this type, with every slice along `axis` multiplied by its factor, in f64 and rounded
  // once. Weights are large: this is one pass over them.
  virtual Result<FoldedConstant> scale(uint32_t index, const Type& type, size_t axis, const std::vector<double>& factors) = 0;
};

}  // namespace keirin
