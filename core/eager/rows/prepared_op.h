// SPDX-License-Identifier: Apache-2.0
//
// One op of a Graph as a function over at::Tensor: a row's own, or an opaque call boxed. Private to core/eager.
#pragma once

#include "core/eager/rows/call_table.h"
#include "core/eager/rows/graph_calls.h"
#include "core/eager/rows/row_calls.h"

namespace keirin {

// `calls` may be null if the op is not an opaque one.
Result<RowRun> prepare_op(const Graph& graph, OpId op, const std::shared_ptr<const CallTable>& calls,
                          const CallOptions& options);

// The dtype in which a value of `dtype` is held under the options.
DType held_dtype(DType dtype, const CallOptions& options);

}  // namespace keirin
