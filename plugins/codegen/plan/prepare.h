// SPDX-License-Identifier: Apache-2.0
//
// From a FlatRegion to a PreparedRegion one: rewrites what must be generated, lets anchors absorb scalar ops, and decides the storage that
// nothing may change: region outputs, operands and results of anchors, concatenations, index tensors.
#pragma once

#include "plugins/codegen/backend.h"
#include "plugins/codegen/plan/fuse.h"

namespace keirin::codegen {

// `known`: of an executable of the same region, also at other sizes: what its kernels store is left to kernels. Null: there is none.
PreparedRegion prepare(FlatRegion region, const Backend& backend, const Grouping* known = nullptr);

// Fills the descriptions of the anchors from the final layout.
void describe_anchors(PreparedRegion& prepared);

}  // namespace keirin::codegen
