// SPDX-License-Identifier: Apache-2.0
//
// Builds the kernel that computes given tensors: starting from each, it walks back through the region, turning moves into index
// maps, scalar ops into DAG nodes and reductions into stages, until it meets stored tensors.
//
// A kernel is right by construction: a tensor is always evaluated at explicit coordinates, and a reduction is taken from the
// row's stage only if its coordinates are those of the row.
#pragma once

#include <span>
#include <string>
#include <variant>

#include "plugins/codegen/kernel/draft.h"
#include "plugins/codegen/plan/storage.h"
#include "plugins/codegen/region/region.h"

namespace keirin::codegen {

// Why no kernel could be built: `store_first` names a tensor that would have to be stored for it, or is -1.
struct Refusal {
  std::string why;
  int store_first = -1;
};

// The kernel that stores `results` (all of them stored in `layout`).
std::variant<Draft, Refusal> emit_kernel(const FlatRegion& region, const Layout& layout, std::span<const int> results);

}  // namespace keirin::codegen
