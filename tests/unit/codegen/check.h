// SPDX-License-Identifier: Apache-2.0
//
// Compiles a region with a backend (the interpreting one if none is given), runs it on guarded memory and compares with node-by-node
// evaluation.
#pragma once

#include <memory>
#include <random>
#include <string>

#include "plugins/codegen/plan/compiled_region.h"
#include "tests/unit/codegen/evaluate.h"
#include "tests/unit/codegen/interp_backend.h"
#include "tests/unit/codegen/region_builder.h"

namespace keirin::codegen::test {

struct Checked {
  std::unique_ptr<CompiledRegion> executable;
  krn_code code = KRN_STATUS_ok;
  std::vector<Values> outputs;
  uint32_t kernels() const { return executable->num_kernels(); }
};

// Inputs row-major; absent: random ones (integers in [0, limit), bools, floats in [-2, 2]). Fails the test on a difference. `grouping`
// and `sized`: CompiledRegion::compile's.
Checked check(const RegionBuilder& builder, Backend& backend, std::vector<Values> inputs = {}, double tolerance = 1e-4,
              const Grouping* grouping = nullptr, SizedPlans* sized = nullptr);
Checked check(const RegionBuilder& builder, std::vector<Values> inputs = {}, double tolerance = 1e-4);

// Compiled and run only.
Checked run_region(const RegionBuilder& builder, Backend& backend, const std::vector<Values>& inputs, const Grouping* grouping = nullptr,
                   SizedPlans* sized = nullptr);
std::vector<Values> random_inputs(const FlatRegion& region, uint32_t seed, int64_t limit = 4);

}  // namespace keirin::codegen::test
