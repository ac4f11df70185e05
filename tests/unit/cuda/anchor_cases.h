// SPDX-License-Identifier: Apache-2.0
//
// Anchors that hand-written kernels run, with random operands and the results as computed here in double: for the emulated run,
// for NVRTC, and for a device.
#pragma once

#include <string>
#include <vector>

#include "plugins/codegen/backend.h"
#include "tests/unit/cpu/kernel_maker.h"

namespace keirin::test {

struct AnchorCase {
  std::string name;
  codegen::AnchorDesc anchor;     // operands and result in buffers of their own, numbered in order
  std::vector<Storage> buffers;   // by number
  std::vector<double> expected;   // of the result, by place in its buffer; NaN where nothing may be written
  uint32_t result = 0;            // its buffer
  double relative = 0;            // of the largest magnitude of the result
  bool matrix_units = false;      // by these; a vendor's own text for them cannot be emulated

  // Empty, or what is wrong with the result's buffer.
  std::string difference(Storage got) const;
};

std::vector<AnchorCase> anchor_cases();

}  // namespace keirin::test
