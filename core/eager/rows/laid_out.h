// SPDX-License-Identifier: Apache-2.0
//
// Products and convolutions of a plan that LibTorch runs, with the weight laid out once. Over Arm's Compute Library LibTorch lays out
// the weight of every call anew, which costs more than a small product itself; given in the library's own layout, or transposed, it is
// taken as it is. On other processors nothing is done here. Private to core/eager.
#pragma once

#include "core/eager/rows/graph_calls.h"
#include "core/eager/rows/row_calls.h"

namespace keirin {

struct LaidOut {
  RowRun run;  // null: the op is called as it stands
  int64_t bytes = 0;
};

// `constants` by index. The layout is shared with every other plan of the process that wants the same weight so, and lives as long as
// one of them.
LaidOut lay_out_weight(const Graph& graph, OpId id, const std::vector<TensorRef>& constants, const CallOptions& options);

}  // namespace keirin
