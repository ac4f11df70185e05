// SPDX-License-Identifier: Apache-2.0
//
// Node-by-node evaluation of a region: the expected values of the tests. It shares with the code under test the reading of the
// bytes and the scalar formulas (in double), and nothing of index maps, fusion or kernels.
#pragma once

#include <vector>

#include "plugins/codegen/backend.h"
#include "plugins/codegen/region/region.h"

namespace keirin::codegen::test {

using Values = std::vector<double>;  // row-major

// Values of the region's outputs from those of its inputs.
std::vector<Values> evaluate(const FlatRegion& region, const std::vector<Values>& inputs);

// The formula of a scalar row, in double.
double evaluate_scalar(uint32_t op, const double* operands);

// Naive loops for matmul, linear, conv and attention; shared with the test backend.
Values evaluate_anchor(const FlatRegion& region, const TensorNode& node, const std::vector<Values>& operands);

}  // namespace keirin::codegen::test
