// SPDX-License-Identifier: Apache-2.0
//
// One GPU as the driver describes it. Looking at a device creates no context.
#pragma once

#include <memory>
#include <string>

#include "plugins/gpu/device.h"

namespace keirin::cuda {

// The device of that PCI address ("0000:3b:00.0"), or else of that number; null with the reason. Needs driver and
// NVRTC.
std::unique_ptr<gpu::Gpu> look_at_gpu(const std::string& pci, int index, std::string& why_not);
// A device that is not there, for tests of all that compiles without one.
gpu::Gpu imagine_gpu(const std::string& arch);
// The same without libraries, if NVRTC compiles for it; null with the reason.
std::unique_ptr<gpu::Gpu> imagine_for_launches(const std::string& arch, std::string& why_not);
// What code for one is compiled for.
gpu::CodeTarget target_of(const std::string& arch);

}  // namespace keirin::cuda
