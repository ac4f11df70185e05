// SPDX-License-Identifier: Apache-2.0
//
// Anchors that the backend does not take, and scatters, rewritten into moves, scalar ops and reductions, which fuse like any
// other. What cannot be rewritten has a reason.
#pragma once

#include <string>

#include "plugins/codegen/backend.h"
#include "plugins/codegen/region/region.h"

namespace keirin::codegen {

// Rewrites node `n` in place (its result keeps its number), or returns why it cannot. New nodes may be anchors themselves.
std::string rewrite(FlatRegion& region, int n, const TargetInfo& target);

// Whether a convolution is a product of few numbers, each image being one pixel: a sum for each channel is its rewritten form. Squeeze and
// excitation ask for it, and libraries' convolutions are slow at it.
bool is_pixel_product(const AnchorDesc& anchor);

// Description of an anchor with its operands as the graph types them; storage is filled in by the planner.
AnchorDesc describe_anchor(const FlatRegion& region, const TensorNode& node);

}  // namespace keirin::codegen
