// SPDX-License-Identifier: Apache-2.0
//
// The region as the code generator sees it: one flat list of nodes over numbered tensors, composite bodies inlined, anchors that
// the backend does not take rewritten into moves and reductions. Read from the graph bytes; never written back.
//
// Invariant: nodes stand in topological order, and every tensor has at most one producer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "abi/graph.h"
#include "plugins/codegen/kernel/rows.h"

namespace keirin::codegen {

using Dims = std::vector<int64_t>;

// Nodes that exist only here, made by rewriting.
enum InternalOp : uint32_t {
  kOpWindow = 0x10000,         // x -> [.., out.., kernel..]: the windows of the trailing axes, `fill` outside
  kOpSegmentReduce = 0x10001,  // src, index -> rows: src's rows folded by destination; attrs dim, rows, monoid
};

struct Tensor {
  uint8_t dtype = 0;
  bool observed = false;
  Dims sizes;
  Dims strides;       // what the graph states: binding for region inputs and outputs, a wish inside
  int producer = -1;  // node, or none for an input
  int input = -1;     // which input of the region
  uint32_t weight = KRN_NONE;
  std::vector<int> readers;  // nodes

  int64_t numel() const {
    int64_t n = 1;
    for (int64_t s : sizes) n *= s;
    return n;
  }
  int rank() const { return static_cast<int>(sizes.size()); }
};

// Attributes in the forms that lowering reads; the rest stay zero.
struct Attrs {
  Dims dims, sizes, low, high, stride, padding, dilation, output_padding, kernel, scales;
  int64_t dim = 0, start = 0, end = 0, step = 1, value_i = 0, dtype = 0, groups = 1, layers = 1, divisor = 0, rank = 0;
  double value_d = 0, scale = 0, eps = 0;
  bool keepdim = false, include_self = true, transposed = false, causal = false, gqa = false, bidirectional = false,
       batch_first = false, has_biases = false, ceil_mode = false, count_include_pad = true, align_corners = false,
       include_last_offset = false, ieee = false;
  std::string reduce, mode, encoding;
  Monoid monoid = Monoid::kSum;  // kOpSegmentReduce
  bool operator==(const Attrs&) const = default;
};

struct TensorNode {
  uint32_t op = 0;
  std::vector<int> operands;  // tensors, -1 where absent
  std::vector<int> results;
  Attrs attrs;
  uint32_t claim_node = 0;    // the node of the region's top function that it came from
};

struct RegionOutput {
  int tensor = -1;
  int alias_input = -1;
};

class FlatRegion {
 public:
  std::vector<Tensor> tensors;
  std::vector<TensorNode> nodes;
  std::vector<int> inputs;  // tensors
  std::vector<RegionOutput> outputs;

  // Appends a node with one result of that type and returns the result.
  int add(uint32_t op, std::vector<int> operands, uint8_t dtype, Dims sizes, Attrs attrs = {});
  int constant(double value, uint8_t dtype, Dims sizes);
  const TensorNode* producer(int tensor) const {
    return tensors[tensor].producer < 0 ? nullptr : &nodes[tensors[tensor].producer];
  }
  // Recomputes readers, drops nodes that neither an output nor `kept` needs, and puts the rest in topological order.
  void tidy(std::span<const int> kept = {});
};

Dims row_major(const Dims& sizes);
bool is_view(uint32_t op);  // moves whose result is an index map of the operand: no arithmetic, no choice between operands

// Throws kit::Error(corrupt) for bytes that the reader refuses, (unsupported) for nodes without a lowering.
FlatRegion read_region(std::span<const uint8_t> bytes);
FlatRegion read_region(const krn_graph& graph);
Attrs read_attrs(const krn_graph& graph, const krn_gnode& node);

}  // namespace keirin::codegen
