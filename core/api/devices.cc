// SPDX-License-Identifier: Apache-2.0
#include "core/api/devices.h"

#include <algorithm>
#include <optional>

#include "core/eager/tensor_services.h"
#include "core/host/plugins.h"

namespace keirin {

Result<NamedDevice> find_device(std::string_view name, const PluginHost& plugins) {
  std::optional<NamedDevice> found;
  if (const std::optional<Device> device = device_from_name(name)) found = NamedDevice{*device, {}};
  std::vector<std::string> own;  // plugins whose names are not devices' names
  for (PluginDevice* each : plugins.devices()) {
    const std::string& plugin = each->plugin_name();
    if (device_from_name(plugin)) continue;
    if (plugin == name && !found) found = NamedDevice{each->torch_device(), plugin};
    if (std::find(own.begin(), own.end(), plugin) == own.end()) own.push_back(plugin);
  }
  if (!found) {
    (void)devices_here();  // so that GPUs are in the list
    return Status(Code::k_invalid_input, {no_device_text(std::string(name), own), {}, "nothing was run", "give one of these"});
  }
  if (const Status status = ensure_device(found->device); !status.ok()) {
    Message message = status.message();
    const std::string here = device_name(found->device), kind = here.substr(0, here.find(':'));
    message.what = no_device_text(here, own) + (message.where.empty() ? "" : "; " + message.where);
    message.where.clear();  // one line says what is missing
    for (const PluginReport& report : plugins.reports())
      if (!report.used && report.name == kind)
        message.what += "; plugin " + report.name + ": " + report.reason;
    // The kernel shows it and LibTorch, whose GPU code is loaded, does not: what lies between them is the driver's library.
    const auto is_it = [&](const HardwareItem& item) { return item.torch_device == found->device; };
    const auto item = std::find_if(plugins.hardware().begin(), plugins.hardware().end(), is_it);
    if (item != plugins.hardware().end() && message.advice.starts_with("choose one"))
      message.advice = item->description + " is in this machine: install its driver's library, in a version that this LibTorch takes; "
                       "a container has to be started with the GPU";
    return Status(status.code(), std::move(message));
  }
  return std::move(*found);
}

}  // namespace keirin
