// SPDX-License-Identifier: Apache-2.0
//
// What a graph has to move and to compute whatever code runs it, from its shapes alone: a bound from below and no estimate. With the rates
// that a machine was seen to reach (core/api/limits.h) it says how fast a call could be at best.
#pragma once

#include <vector>

#include "core/ir/graph.h"

namespace keirin {

// Products run as fast as their kind and their numbers allow.
struct Contraction {
  bool convolution = false;  // else a product, an attention or a recurrent layer
  DType dtype = DType::kNone;
  double flops = 0;          // two for each multiply-add
};

struct Work {
  double bytes = 0;  // of what comes from memory and what has to stay there, once each
  std::vector<Contraction> contractions;  // one a kind and dtype

  void add(const Contraction& contraction);
};

// Of one operator by itself: zero flops where it is no contraction. A causal attention computes the pairs that its mask leaves.
Contraction contraction_of(const Graph& graph, const Op& op);

// Inputs, weights and state are read and outputs written; what lies between can stay where it is made. Of what is only picked from (`take`,
// `slice`, ...), no more than is picked; of state that is updated in part, that part.
Work least_work(const Graph& graph);
// The same of one operator: its operands are read, its results written.
Work least_work(const Graph& graph, const Op& op);

}  // namespace keirin
