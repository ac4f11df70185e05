// SPDX-License-Identifier: Apache-2.0
//
// A region's plan before anything of it is lowered: plain data, in which sizes are numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "plugins/codegen/backend.h"
#include "plugins/codegen/plan/fuse.h"
#include "plugins/codegen/plan/storage.h"

namespace keirin::codegen {

// Of kernels, or of anchors, or the CSR that kernels behind it walk: by number in PlanParts.
struct PlannedStep {
  std::vector<size_t> kernels;     // more than one where they go together
  std::vector<size_t> anchors;     // more than one where the backend joins them
  int csr = -1;
  std::vector<uint32_t> buffers;   // touched
  bool operator==(const PlannedStep&) const = default;
};

struct PlanParts {
  std::vector<BufferInfo> buffers;
  std::vector<Kernel> kernels;
  std::vector<AnchorDesc> anchors;
  std::vector<Csr> csrs;
  std::vector<PlannedStep> steps;
  std::vector<int> alias_inputs;   // by output: the input that it is written into, or -1
  uint32_t num_inputs = 0;
  Grouping grouping;
  bool operator==(const PlanParts&) const = default;
};

}  // namespace keirin::codegen
