// SPDX-License-Identifier: Apache-2.0
//
// Where a program has to be cut so that the rest of it has known sizes. A *border* is a node whose results' sizes, or
// which itself, hang on data: nonzero, item, masked indexing, cond, while_loop. A *segment* is a run of nodes between
// two borders, in the file's order, of the program's own graph or of one inside a node. At concrete sizes of what it
// reads a segment is a program like any other: `segment_program` writes it down. Pure functions over the schema;
// nothing is resolved against operators.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/base/services.h"
#include "core/capture/pt2/schema.h"

namespace keirin::pt2 {

using Number = std::variant<int64_t, double, bool>;

struct Segment {
  const Graph* graph = nullptr;      // of the program, or inside one of its nodes; lives as long as the program
  size_t first = 0, end = 0;         // its nodes are [first, end) of the graph
  std::vector<std::string> weights;  // inputs that are weights of the model, by name in `graph` ...
  std::vector<std::string> targets;  // ... and in the weight table
  std::vector<std::string> tensors, numbers;                // the other inputs, in order of first use
  std::vector<std::string> tensor_results, number_results;  // what is read behind it
  // The first so many tensor results are floats of more than one element. The others are what the host or an index
  // looks at: masks and predicates, which may be constant for any inputs and are compared bit by bit.
  size_t varying_results = 0;
  int operators = 0;  // nodes that compute tensors
  // "linear .. gt", the first and the last operator; "cond/linear .. mul" inside of node cond.
  std::string name;
};

struct Segments {
  std::vector<Segment> all;    // those of a graph in ascending order; the graphs in the order of a walk
  int borders = 0;             // in all graphs
  int operators = 0;           // that compute tensors, in all graphs, those of borders included
  bool takes_numbers = false;  // the program has inputs that are numbers
  // Whether the program cannot be captured as one graph because of its borders and numbers.
  bool needed() const { return borders > 0 || takes_numbers; }
};

// Graphs inside of autocast are not cut: their operators compute in other dtypes than the file says.
Segments find_segments(const Program& program);

// What a run of a segment showed, beside its inputs: sizes and strides of the values that it defines.
struct KnownSizes {
  std::vector<int64_t> sizes, strides;
};

// The segment as a program: its weights as inputs of their kinds, then `tensors` as user inputs of exactly these sizes
// and strides; numbers are written into the nodes. Outputs are the tensor results, then, if `with_numbers`, the number
// results. Sizes of values named in `known` are literal, of others as in the file. The lists are parallel to the
// segment's.
Program segment_program(const Program& program, const Segment& segment, std::span<const TensorSpec> tensors,
                        std::span<const Number> numbers, const Named<KnownSizes>& known, bool with_numbers);

}  // namespace keirin::pt2
