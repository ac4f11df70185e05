// SPDX-License-Identifier: Apache-2.0
//
// From a Region to a Prepared one: rewrites what must be generated, lets anchors absorb scalar ops, and decides the storage that
// nothing may change: region outputs, operands and results of anchors, concatenations, index tensors.
#pragma once

#include "plugins/codegen/backend.h"
#include "plugins/codegen/fuse.h"

namespace keirin::codegen {

Prepared prepare(Region region, const Backend& backend);

// Fills the descriptions of the anchors from the final layout.
void describe_anchors(Prepared& prepared);

}  // namespace keirin::codegen
