// SPDX-License-Identifier: Apache-2.0
//
// A graph at any sizes of a model's free ones: what one program gives at several of them has one structure as a rule, and each of its
// numbers is a constant or a polynomial of the sizes. Where that holds for all numbers of graphs that were captured and optimised one by
// one, the graph at further sizes is written down.
//
// A number at sizes between is then what the polynomial says, not what capture would have found: min(n, 128) is n in all graphs of sizes
// up to 128. So graphs come from the ends of what is to be answered and from many places between, and sizes are answered that are of their
// kind (which of them are 1, which are equal) and lie between them; who makes one sees to that.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "abi/polynomial.h"
#include "core/base/status.h"
#include "core/ir/graph.h"

namespace keirin {

class SizedGraph {
 public:
  // graphs[k] is the program's at sizes[k], a value for each free size. `unsupported`, in words, where they differ in more than numbers, or
  // a number follows the sizes in no way that is known here.
  static Result<SizedGraph> of(const std::vector<std::vector<int64_t>>& sizes, const std::vector<const Graph*>& graphs);

  // Where two graphs differ in more than numbers first, in words; empty: nowhere.
  static std::string difference(const Graph& a, const Graph& b);

  // At these sizes, as many as those were, without ranges of its values. `unsupported` where a number would not be whole, or too large.
  Result<Graph> at(const std::vector<int64_t>& sizes) const;

  size_t num_polynomials() const { return polynomials_.size(); }  // that any number follows

 private:
  using Polynomial = sizes::Polynomial;
  using As = sizes::As;
  struct Place {
    size_t number = 0;  // of the graph's, in the order in which visit_numbers meets them
    size_t polynomial = 0;
    As as = As::kWhole;
  };
  class Finder;

  Graph base_;
  std::vector<std::vector<uint8_t>> monomials_;  // exponents by size
  std::vector<Polynomial> polynomials_;
  std::vector<Place> places_;  // ascending
};

}  // namespace keirin
