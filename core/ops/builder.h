// SPDX-License-Identifier: Apache-2.0
//
// Appends ops to a Graph with their results' types inferred from the table: what the importer, the decompositions and
// the passes write with. It checks what it is given; an error leaves the Graph as it was.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/ir/graph.h"

namespace keirin {

class Builder {
 public:
  explicit Builder(Graph& graph) : graph_(graph) {}
  Graph& graph() { return graph_; }
  const Type& type(ValueId v) const { return graph_.type(v); }
  void set_origin(SharedText origin) { origin_ = std::move(origin); }

  // Any row of the table by code. Results' types follow from core/ops/infer.h.
  Result<ValueIds> emit(OpCode code, ValueIds operands, Attrs attrs = {});
  Result<ValueId> emit1(OpCode code, ValueIds operands, Attrs attrs = {});

  // Short forms that most callers need. `cast`, `expand_to`, `reshape` return the operand itself where nothing changes.
  Result<ValueId> full(double value, DType dtype, Dims sizes);
  Result<ValueId> full_i(int64_t value, DType dtype, Dims sizes);
  Result<ValueId> cast(ValueId x, DType dtype);
  Result<ValueId> expand_to(ValueId x, const Dims& sizes);  // aligns ranks from the right, as broadcasting does
  Result<ValueId> reshape(ValueId x, Dims sizes);
  Result<ValueId> permute(ValueId x, Dims dims);
  // ATen's binary rule: broadcast both, promote to `dtype`, then emit.
  Result<ValueId> binary(OpCode code, ValueId a, ValueId b, DType dtype);

 private:
  Graph& graph_;
  SharedText origin_;
};

}  // namespace keirin
