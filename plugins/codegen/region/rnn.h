// SPDX-License-Identifier: Apache-2.0
//
// What LSTM and GRU anchors have in common for the backends that run them. Operands, in LibTorch's order: x, h0, c0 (LSTM only),
// then for each layer and direction w_ih [gates * hidden, in], w_hh [gates * hidden, hidden] and, with biases, b_ih and b_hh.
// Results: y, h_n and, of an LSTM, c_n. Gates stand in the order i f g o, or r z n.
#pragma once

#include <string>

#include "plugins/codegen/backend.h"

namespace keirin::codegen {

struct RnnShape {
  int64_t time, batch, input, hidden, directions, layers, gates;
  bool lstm, batch_first, biases;
  size_t first_weight;  // operand

  explicit RnnShape(const AnchorDesc& anchor);  // of rank 3
  int64_t layer_input(int64_t layer) const { return layer == 0 ? input : directions * hidden; }
  // 0 w_ih, 1 w_hh, 2 b_ih, 3 b_hh.
  const TensorDesc& weight(const AnchorDesc& anchor, int64_t layer, int64_t direction, size_t which) const {
    return anchor.operands[first_weight + static_cast<size_t>(layer * directions + direction) * (biases ? 4 : 2) + which];
  }
};

// Batched, without projections, everything dense, x and y perhaps with time and batch exchanged in memory; or why not.
bool rnn_is_plain(const AnchorDesc& anchor, std::string& why_not);

}  // namespace keirin::codegen
