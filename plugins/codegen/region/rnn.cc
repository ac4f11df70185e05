// SPDX-License-Identifier: Apache-2.0
#include "plugins/codegen/region/rnn.h"

#include <utility>

#include "plugins/kit/tables.h"

namespace keirin::codegen {
namespace {

bool is_dense(const TensorDesc& t) {
  int64_t stride = 1;
  for (size_t i = t.sizes.size(); i-- > 0;) {
    if (t.sizes[i] != 1 && t.strides[i] != stride) return false;
    stride *= t.sizes[i];
  }
  return true;
}

// LibTorch gives a batch-first result as a view of a time-first one.
bool is_sequence(const TensorDesc& t) {
  TensorDesc turned = t;
  std::swap(turned.sizes[0], turned.sizes[1]);
  std::swap(turned.strides[0], turned.strides[1]);
  return is_dense(t) || is_dense(turned);
}

}  // namespace

RnnShape::RnnShape(const AnchorDesc& a) {
  lstm = a.op == kit::kOp_lstm;
  batch_first = a.batch_first;
  biases = a.has_biases;
  const TensorDesc& x = a.operands[0];
  time = x.sizes[batch_first ? 1 : 0];
  batch = x.sizes[batch_first ? 0 : 1];
  input = x.sizes[2];
  hidden = a.operands[1].sizes[2];
  directions = a.bidirectional ? 2 : 1;
  layers = a.layers;
  gates = lstm ? 4 : 3;
  first_weight = lstm ? 3 : 2;
}

bool rnn_is_plain(const AnchorDesc& a, std::string& why_not) {
  auto no = [&](const char* why) { return why_not = why, false; };
  if (a.operands[0].sizes.size() != 3) return no("a recurrent cell without a batch");
  const RnnShape s(a);
  if (a.results.size() < (s.lstm ? 3u : 2u)) return no("a recurrent cell without its last state");
  if (a.operands.size() != s.first_weight + static_cast<size_t>(s.layers * s.directions) * (s.biases ? 4 : 2))
    return no("a recurrent cell with projections");
  for (size_t i = 0; i < a.operands.size(); ++i)
    if (!(i == 0 ? is_sequence(a.operands[i]) : is_dense(a.operands[i]))) return no("a recurrent cell over a strided operand");
  for (const TensorDesc& r : a.results)
    if (!(&r == &a.results[0] ? is_sequence(r) : is_dense(r))) return no("a recurrent cell with a strided result");
  return true;
}

}  // namespace keirin::codegen
