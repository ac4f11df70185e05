// SPDX-License-Identifier: Apache-2.0
//
// The shapes of a region checked against its operators. The graph reader vouches for indices only; lowering may rely on what is
// checked here (ranks, axes, sizes) and nothing else.
#pragma once

#include "plugins/codegen/region/region.h"

namespace keirin::codegen {

// The first node that does not fit, and how: "node 3 (cumsum) has ..."; empty if all fit.
std::string misfit_of(const FlatRegion& region);
// Throws kit::Error(corrupt) with it.
void check_region(const FlatRegion& region);

}  // namespace keirin::codegen
