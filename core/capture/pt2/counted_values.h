// SPDX-License-Identifier: Apache-2.0
//
// What a model for a device counts on the processor: tensors that are made of nothing but numbers there and that only
// operators of the device read (torch.tril_indices without a device, as indices). Operators take such tensors, the one
// graph of a device does not.
#pragma once

#include "core/capture/pt2/schema.h"

namespace keirin::pt2 {

// Has `program` make them on its device. What it returns, draws at random or makes of tensors on the processor stays
// there, and all that these are made of. A program of one kind of device is left as it is.
void count_on_device(Program& program);

}  // namespace keirin::pt2
