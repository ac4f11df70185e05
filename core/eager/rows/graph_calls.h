// SPDX-License-Identifier: Apache-2.0
//
// LibTorch as an executor of Graphs: single ops for steps of a plan, whole graphs for constant folding, for the fp64
// referee and for candidate 1 (boxed replay after the passes). No torch in this header; nothing here chooses or
// measures.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/base/tensor.h"
#include "core/ir/graph.h"

namespace keirin {

class CallTable;

// One op of a Graph, ready to run. Any thread may run it; results may be views of operands.
class PreparedCall {
 public:
  virtual ~PreparedCall() = default;
  // `operands` in the op's order, null where absent. `results` is replaced.
  virtual Status run(std::span<const TensorRef> operands, std::vector<TensorRef>& results) const = 0;
  // What it holds of its own: a weight in another layout.
  virtual int64_t constant_bytes() const { return 0; }
};

// With `float_dtype` every floating value has that dtype instead of its own: casts between floats do nothing, and an
// opaque operator that refuses the dtype runs in its own one and is cast.
struct CallOptions {
  Device device;
  std::optional<DType> float_dtype;
};

class GraphCalls {
 public:
  // `calls` is that of the Captured whose ops are run; null for a Graph without opaque ops.
  explicit GraphCalls(std::shared_ptr<const CallTable> calls, CallOptions options = {});
  // The op and what it needs of the Graph are copied. With the constants, by index, a weight among the operands is laid out once as the
  // library under LibTorch wants it, where that is worth it.
  Result<std::unique_ptr<PreparedCall>> prepare(const Graph& graph, OpId op, const std::vector<TensorRef>& constants = {}) const;

 private:
  std::shared_ptr<const CallTable> calls_;
  CallOptions options_;
};

// A whole Graph on dense slots, each emptied at its last use.
class EagerGraph {
 public:
  // `constants` by the index of kConstant and kState values; shared, so that state is written where everyone sees it.
  static Result<std::unique_ptr<EagerGraph>> make(const Graph& graph, std::shared_ptr<const CallTable> calls,
                                                   const std::vector<TensorRef>& constants, CallOptions options = {});
  ~EagerGraph();

  // The user's outputs, each with storage of its own, shared with no other one, unless the Graph says that it is an input; state and
  // written inputs are updated before it returns. Inputs are not checked. Several threads may run at once if the Graph updates nothing.
  Result<std::vector<TensorRef>> run(const std::vector<TensorRef>& inputs) const;
  // A value for every output of the Graph, updates included, and nothing is written.
  Result<std::vector<TensorRef>> evaluate(const std::vector<TensorRef>& inputs) const;

 private:
  struct Impl;
  explicit EagerGraph(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// make and evaluate at once. Inputs and constants keep their dtypes; the referee's casts are made here.
Result<std::vector<TensorRef>> evaluate(const Graph& graph, std::shared_ptr<const CallTable> calls,
                                        const std::vector<TensorRef>& inputs, const std::vector<TensorRef>& constants,
                                        CallOptions options = {});

}  // namespace keirin
