// SPDX-License-Identifier: Apache-2.0
//
// A device that is not there, behind the seam of driver.h: code is compiled for it, memory is the host's, and a launch does nothing. For
// looking at what would be launched (launch_list.h). What it is not: an emulator.
#pragma once

#include "plugins/gpu/driver.h"

namespace keirin::gpu {

// `vendor` gives the words and the compiler; it outlives everything, and so does what is returned. Any thread.
const Driver& imagine_driver(const Driver& vendor);

}  // namespace keirin::gpu
