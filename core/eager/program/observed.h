// SPDX-License-Identifier: Apache-2.0
//
// What one eager run of the file showed about memory: which values are views of which, in which strides, and what was written. A
// schema says what an operator may do; whether `reshape`, `contiguous` or `to` made a view at these strides and dtypes only a run
// says. It holds for calls whose inputs have the same dtypes, sizes and strides, which a plan's guard checks. No torch.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace keirin {

struct ObservedValue {
  std::vector<int64_t> sizes, strides;
  std::string view_of;          // the operand whose storage the value shares; empty: its storage is its own
  bool fills_storage = false;   // its elements are the whole storage, row-major
};

struct ObservedRun {
  // Names as in the file; those of a graph inside a node are "node/name".
  std::map<std::string, ObservedValue, std::less<>> values;
  // Nodes that wrote memory which another of their operands reads in other places: what they leave there depends on the order.
  std::set<std::string, std::less<>> overlapping_writes;
  std::vector<size_t> written_weights;  // positions in the WeightTable, ascending; those that share the written storage included
  // An operator names memory of an input or weight by its place in the storage, which may lie outside of the input's elements: what
  // it answers depends on more than a call passes, and a copy of the input would give something else.
  bool reads_storage = false;
  // Results (whole_product_name) of products of f32 whose operands the libraries under LibTorch left as they are, where its settings let
  // them round these to TF32.
  std::set<std::string, std::less<>> whole_products;
  bool draws_random = false;            // numbers of a generator of LibTorch's
  std::vector<size_t> written_inputs;   // flat positions of the user's inputs, ascending
};

// Of a node's result: the gradient of a convolution's weight is the second one.
inline std::string whole_product_name(const std::string& node, size_t result) {
  return result == 0 ? node : node + "/" + std::to_string(result);
}

}  // namespace keirin
