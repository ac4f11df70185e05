// SPDX-License-Identifier: Apache-2.0
//
// Which numbers the nodes of a kernel may be, as far as its axes and literals say: an index that is computed of coordinates, as a pool's
// windows are, needs no check where they show that it lies inside.
#pragma once

#include <limits>
#include <vector>

#include "plugins/codegen/kernel/loops.h"

namespace keirin::codegen {

// From low to high. Of floats without `is_number` also no number at all, which no comparison holds back.
struct Bounds {
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
  bool is_number = false;
};

std::vector<Bounds> bounds_of(const Kernel& kernel);  // by node

// Sets `inside` of each indirection whose index lies in [0, limit) at every point of the kernel's axes.
void find_inside(Kernel& kernel);

}  // namespace keirin::codegen
