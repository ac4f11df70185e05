// SPDX-License-Identifier: Apache-2.0
//
// What a device's name means in this process: one of LibTorch's devices (`cpu`, `cuda`, `cuda:1`, `rocm:0`; core/base/tensor.h), or the
// name of a plugin, for the device that it drives. Whoever is given a name asks here, so that there is one error for what is not there.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/base/tensor.h"

namespace keirin {

class PluginHost;

struct NamedDevice {
  Device device;       // where tensors lie
  std::string plugin;  // the only one that compiles; empty: all that drive the device
};

// Loads LibTorch's GPU library where the name asks for one. `invalid_input` for a word that names nothing, `unsupported` for a device that
// is not here; both list what is. Any thread.
Result<NamedDevice> find_device(std::string_view name, const PluginHost& plugins);

}  // namespace keirin
