// SPDX-License-Identifier: Apache-2.0
//
// Cuts a Graph into what plugins compile and what stays eager, in linear time. It decides by claims only; which of several
// cuts is fastest is measured elsewhere. Regions are convex and the steps are in a legal order by construction: an op's level
// is at least its producers', and more where the claimer differs, so every path through another class comes back higher.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/ir/graph.h"

namespace keirin {

// What one plugin wants. Where claims overlap the earlier one in the list wins. Opaque ops cannot be claimed.
struct Claim {
  uint32_t plugin = 0;
  std::vector<OpId> ops;
};

// A part of a graph as a graph of its own.
struct RegionGraph {
  Graph graph;                   // values from outside are kInput; constants and states keep kind and index
  std::vector<ValueId> values;   // by value of `graph`: the value of the whole graph behind it
};

struct Region {
  uint32_t plugin = 0;
  std::vector<OpId> ops;         // ascending; floating ops that were copied in are among them
  RegionGraph cut;
};

struct Step {
  enum Kind : uint8_t { kRegion, kEager } kind = kEager;
  uint32_t index = 0;            // into Partition::regions, or the op
};

struct Partition {
  std::vector<Region> regions;
  std::vector<Step> steps;       // every step stands behind those whose results it reads
  // By Graph::outputs: the update is done by a region, in place; for the others the plan copies when the call ends.
  std::vector<uint8_t> updated_in_place;
};

// The graph must verify. Floating ops (factories, and views of inputs and constants) are copied into each region that reads
// them, so that no region's border carries them; one that eager ops or outputs read is an eager step, too.
Result<Partition> partition(const Graph& graph, const std::vector<Claim>& claims);

// The ops (ascending, convex) as a graph. `escapes`, by value of the whole graph: somebody outside reads it, so it is an output,
// in the order of the ops. `updates` are outputs of the whole graph that the region performs in place; they come last.
RegionGraph extract_region(const Graph& graph, const std::vector<OpId>& ops, const std::vector<uint8_t>& escapes,
                           const std::vector<Output>& updates);

}  // namespace keirin
