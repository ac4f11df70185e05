// SPDX-License-Identifier: Apache-2.0
//
// What the driver's management library tells of a GPU while it works: clocks, what holds them down, other processes.
#pragma once

#include <functional>
#include <string>

#include "abi/plugin.h"

namespace keirin::cuda {

// Reads the condition of the device of that PCI address ("0000:3b:00.0"); empty where the library is not there or does not know it.
// The function may be called from any thread and keeps nothing of the device.
std::function<void(krn_condition&)> condition_of(const std::string& pci);

}  // namespace keirin::cuda
