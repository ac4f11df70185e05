// SPDX-License-Identifier: Apache-2.0
//
// One node of a region as the row functions see it: operands as arrays, attributes by key, result types. It owns
// nothing.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "abi/graph.h"
#include "plugins/kit/error.h"
#include "plugins/kit/tables.h"
#include "plugins/reference/array.h"

namespace keirin::reference {

using enum kit::Op;
using enum kit::AttrKey;
using Key = kit::AttrKey;

class Node {
 public:
  Node(const krn_graph& graph, const krn_gnode& node, std::vector<const Array*> operands)
      : graph_(graph), node_(node), operands_(std::move(operands)) {}

  uint32_t op() const { return node_.op; }
  size_t num_operands() const { return operands_.size(); }
  bool has(size_t i) const { return i < operands_.size() && operands_[i] != nullptr; }
  const Array& operand(size_t i) const {
    if (!has(i)) throw kit::Error(KRN_STATUS_invalid_input, "an operand that the op needs is absent");
    return *operands_[i];
  }
  // An array of result `i`'s dtype and sizes, zeroed.
  Array result(size_t i = 0) const {
    const krn_gtype* t = krn_graph_value_type(&graph_, node_.first_result + static_cast<uint32_t>(i));
    const int64_t* sizes = krn_graph_sizes(&graph_, t);
    return Array::make(t->dtype, Dims(sizes, sizes + t->rank));
  }

  int64_t i(Key key) const {
    const krn_gattr* a = find(key);
    return a != nullptr ? static_cast<int64_t>(a->bits) : 0;
  }
  bool b(Key key) const { return i(key) != 0; }
  double d(Key key) const {
    uint64_t bits = static_cast<uint64_t>(i(key));
    double v;
    std::memcpy(&v, &bits, sizeof v);
    return v;
  }
  Dims ints(Key key) const {
    const krn_gattr* a = find(key);
    if (a == nullptr || a->count == 0) return {};
    const int64_t* words = krn_graph_words(&graph_, a);
    return Dims(words, words + a->count);
  }
  std::string_view word(Key key) const {
    const krn_gattr* a = find(key);
    if (a == nullptr || a->count == 0) return {};
    return {krn_graph_chars(&graph_, a), a->count};
  }

 private:
  const krn_gattr* find(Key key) const { return krn_graph_find_attr(&graph_, &node_, key); }

  const krn_graph& graph_;
  const krn_gnode& node_;
  std::vector<const Array*> operands_;
};

using Arrays = std::vector<Array>;

// The results of a node, not yet rounded. One file each; a family answers an empty list for a node that is none of its
// rows.
Arrays scalar_row(const Node& node);
Arrays reduce_row(const Node& node);
Arrays move_row(const Node& node);
Arrays contraction_row(const Node& node);
Arrays window_row(const Node& node);
Arrays rnn_row(const Node& node);
Arrays norm_row(const Node& node);

// An index that leaves [0, size) is eager's error.
inline int64_t checked_index(int64_t at, int64_t size) {
  if (at < 0 || at >= size)
    throw kit::Error(KRN_STATUS_invalid_input,
                     "index " + std::to_string(at) + " is out of range for an axis of size " + std::to_string(size));
  return at;
}

}  // namespace keirin::reference
