// SPDX-License-Identifier: Apache-2.0
//
// A Graph as the canonical bytes of abi/graph.h, and back. Equal computations give equal bytes, whatever the order and the
// ids of their ops: nodes in post-order from the outputs, values, inputs and weights numbered by first use, dead ops left out.
// The order of Graph::outputs is part of the computation and kept. Values of constants are not part of the bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/sha256.h"
#include "core/base/status.h"
#include "core/ir/graph.h"

namespace keirin {

struct RegionBytes {
  std::vector<uint8_t> bytes;
  Hash hash;                     // of the hashed sections: the region's identity
  std::vector<ValueId> inputs;   // the value of the Graph behind each input of the region, weights among them
  std::vector<ValueId> weights;  // the kConstant value behind each weight id
  std::vector<OpId> nodes;       // the op behind each node of the region (bodies come after them)
  // Output k of the region is Graph::outputs[k].
};

// A kConstant becomes a weight; a kState is an ordinary input, aliased by the output that updates it. Op::body, where it is
// set, is written into the section of functions; equal bodies are written once. The graph must verify.
Result<RegionBytes> write_region(const Graph& graph);

// The hash that write_region reported for these bytes. `corrupt` if they do not open.
Result<Hash> hash_region(const std::vector<uint8_t>& bytes);

// The Graph behind the bytes: inputs are numbered by position, weights become constants numbered by weight id, a target of an
// update is an input. write_region(read_graph(bytes)) gives the same bytes again. `corrupt` if they do not open.
Result<Graph> read_graph(const std::vector<uint8_t>& bytes);

}  // namespace keirin
