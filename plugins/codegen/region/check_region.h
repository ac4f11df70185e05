// SPDX-License-Identifier: Apache-2.0
//
// The shapes of a region checked against its operators. The graph reader vouches for indices only; lowering may rely on what is
// checked here (ranks, axes, sizes) and nothing else.
#pragma once

#include "plugins/codegen/region/region.h"

namespace keirin::codegen {

// Throws kit::Error(corrupt) naming the first node that does not fit.
void check_region(const FlatRegion& region);

}  // namespace keirin::codegen
