// SPDX-License-Identifier: Apache-2.0
//
// How LibTorch computes each row of the table: one maker per op code, which reads the attributes once and answers the
// function that runs. Private to core/eager.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "core/ir/graph.h"

namespace keirin {

// Operands (undefined where absent) in, results out; throws what ATen throws.
using RowIn = std::span<const at::Tensor* const>;
using RowOut = std::span<at::Tensor>;
using RowRun = std::function<void(RowIn in, RowOut out)>;

// What a maker may look at. `results` are the types to compute in: the Graph's own, or with another float dtype.
struct RowSite {
  const Graph& graph;
  const Op& op;
  std::vector<Type> results;
  at::Device device;
  // The number that every element of an operand is, if the Graph says so by a `full`.
  std::optional<at::Scalar> number(size_t operand) const;
  at::ScalarType dtype() const;  // of result 0
};

// Null if no row has this code (an opaque op).
RowRun make_row_run(const RowSite& site);

// The three parts of the table; each answers null for a code that is not its own.
RowRun make_scalar_run(const RowSite& site);     // SCALAR rows
RowRun make_tensor_run(const RowSite& site);     // REDUCE, MOVE and FACTORY rows
RowRun make_composite_run(const RowSite& site);  // COMPOSITE rows

}  // namespace keirin
