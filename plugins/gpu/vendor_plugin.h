// SPDX-License-Identifier: Apache-2.0
//
// The plugin of a vendor of GPUs over PluginDevice: whose hardware is its own, and a device that is not there, where one is asked for
// ($KEIRIN_IMAGINE names its instruction set). With $KEIRIN_DUMP_LAUNCHES the first run of each region is written down (launch_list.h).
#pragma once

#include <memory>
#include <string>

#include "plugins/gpu/device.h"
#include "plugins/kit/plugin.h"

namespace keirin::gpu {

struct Vendor {
  const char* gpu = "";        // "an AMD GPU"
  int32_t torch_type = 0;      // DLPack's number of LibTorch's device
  uint32_t pci_vendor = 0;
  // The device of that PCI address, or else of that number; null with the reason.
  std::unique_ptr<Gpu> (*look)(const std::string& pci, int index, std::string& why_not) = nullptr;
  // Whether its libraries are there. Null: where there is no hardware this is not asked.
  bool (*could_look)(std::string& why_not) = nullptr;
  // One that is not there but can be compiled for, without libraries; null with the reason. Its driver is the vendor's.
  std::unique_ptr<Gpu> (*imagine)(const std::string& arch, std::string& why_not) = nullptr;
};

// `vendor` outlives it.
std::unique_ptr<kit::Plugin> make_vendor_plugin(const Vendor& vendor);

}  // namespace keirin::gpu
