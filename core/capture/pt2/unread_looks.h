// SPDX-License-Identifier: Apache-2.0
//
// Looks of the host's at values (item) that nobody reads any more. A size that a model computes as a tensor
// (torch.div(size, 2, rounding_mode="trunc")) is looked at while it is traced; the sizes that follow are literals in the
// file, and the look is left behind. Each would cut the program in two and, on a device, wait for it.
#pragma once

#include "core/capture/pt2/schema.h"

namespace keirin::pt2 {

// Takes them out of `graph`, not out of graphs inside its nodes.
void drop_unread_looks(Program& program);

}  // namespace keirin::pt2
