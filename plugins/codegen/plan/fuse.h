// SPDX-License-Identifier: Apache-2.0
//
// Which tensors are stored and which kernels compute them. Everything starts stored, one kernel each; then the merge or the
// inlining that saves most by the target's prior is applied, until none saves anything.
#pragma once

#include <cstdint>
#include <vector>

#include "plugins/codegen/backend.h"
#include "plugins/codegen/kernel/draft.h"
#include "plugins/codegen/plan/storage.h"
#include "plugins/codegen/region/region.h"

namespace keirin::codegen {

// An anchor with the scalar ops that its library applies to the result.
struct AnchorPlan {
  int node = -1;
  struct Post {
    uint32_t op;
    int operand = -1;  // tensor, or none
    double alpha = 0, beta = 0;
  };
  std::vector<Post> post_ops;
  std::vector<int> results;  // the last post op's result stands in for the anchor's own first
  AnchorDesc desc;           // filled once all storage is known
};

struct Group {
  std::vector<int> results;  // stored tensors
  std::vector<int> reads;    // stored tensors, pieces instead of cats
  int anchor = -1;           // number in PreparedRegion::anchors, or a kernel
  Draft draft;
  Kernel kernel;
  double cost_ns = 0;
};

// The region after rewriting, with every tensor that must be stored stored.
struct PreparedRegion {
  FlatRegion region;
  Layout layout;
  std::vector<AnchorPlan> anchors;
  std::vector<bool> forced;        // by tensor: stored whatever fusion wants
  std::vector<bool> absorbed;      // by node: a post op of an anchor
  std::vector<int> alias_of;       // by tensor: the input tensor whose memory it is written into, or -1
  std::vector<int> shown_by;       // by tensor: the whole of which it writes some rows, for those who read that whole; or -1
  std::vector<bool> cat_in_place;  // by tensor: a concatenation whose operands are computed into it
  bool is_cat_in_place(int tensor) const { return cat_in_place[tensor]; }
};

// What fuse() found, without the kernels: for each of them the tensors that it stores, in the order of the groups. Numbers are those
// of PreparedRegion::region, which depend on the region and the target alone.
using Grouping = std::vector<std::vector<int32_t>>;
Grouping grouping_of(const std::vector<Group>& groups);

// Groups in an order that respects all dependencies. `known`: grouping_of() an earlier answer for the same region and target; its
// kernels are built and checked again, without the search, which builds many for each that stays. Throws (corrupt) where that cannot be.
// Null: searched for.
std::vector<Group> fuse(PreparedRegion& prepared, const TargetInfo& target, const Grouping* known = nullptr);

}  // namespace keirin::codegen
