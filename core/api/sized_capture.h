// SPDX-License-Identifier: Apache-2.0
//
// What capture and the passes make of a program at sizes of one kind, so that they need not run for each of them: learned of graphs that
// they made at many places of a box, its corners among them, of which every number has to agree. Internal to core/api.
#pragma once

#include <optional>
#include <vector>

#include "core/api/candidates.h"
#include "core/api/size_ranges.h"
#include "core/ir/sized_graph.h"

namespace keirin {

class SizedCapture {
 public:
  // What sizes it is to be learned at: of this kind (kind_of) in the box, no two alike. All there are, if they are few.
  static std::vector<Sizes> sizes_to_learn(const SizeBox& box, const Sizes& kind);

  // The parts of the box in each of which what was captured and optimised at these sizes has one structure: what is folded while it is
  // small, a slice that is all there is where a size is the most. Nothing is said of the sizes between two of them.
  static std::vector<SizeBox> pieces_of(const SizeBox& box, const std::vector<Sizes>& sizes, const std::vector<const Prepared*>& prepared);

  // Of what was captured and optimised at these sizes, all of one kind, in the box: those of sizes_to_learn at least. `unsupported`: why it
  // cannot be said of other sizes.
  static Result<SizedCapture> of(SizeBox box, const std::vector<Sizes>& sizes, const std::vector<const Prepared*>& prepared,
                                 size_t num_weights);

  const Sizes& kind() const { return kind_; }
  // Of what it holds, some hundred sizes or all if there are fewer; small ones more often, as they are met.
  std::vector<Sizes> sizes_to_rehearse() const;
  bool holds(const Sizes& sizes) const { return box_.holds(sizes) && kind_of(sizes) == kind_; }
  // As capture and passes would prepare it, but for Prepared::captured, which is empty, and the seconds that they took. At sizes that it
  // holds, with the weights that it was learned with and what was folded of them.
  Result<Prepared> at(const Sizes& sizes, const WeightTable& weights, TensorServices& services, Device device,
                      FoldedConstants& folded) const;

 private:
  // Behind the weights: the same at all sizes, or computed at each of them.
  struct Constant {
    TensorRef shared;
    FoldEvaluator::Origin origin;   // of `shared`
    std::optional<SizedGraph> by;
  };

  SizeBox box_;
  Sizes kind_;
  SizedGraph graph_;
  std::vector<Constant> constants_;
};

}  // namespace keirin
