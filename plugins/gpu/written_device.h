// SPDX-License-Identifier: Apache-2.0
//
// A device whose runs are written down (launch_list.h), with what the reference interpreter expects of each. One that is imagined answers
// what the interpreter says, so that a whole model runs on it and the host's judge agrees.
#pragma once

#include <memory>
#include <string>

#include "plugins/gpu/device.h"

namespace keirin::gpu {

// The first run of each region goes to `folder`; "": of none. Throws kit::Error if the folder cannot be written.
std::unique_ptr<kit::Device> write_device(std::unique_ptr<Gpu> gpu, const std::string& folder, bool imagined);

}  // namespace keirin::gpu
