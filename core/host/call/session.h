// SPDX-License-Identifier: Apache-2.0
//
// One plugin from its library to its devices: negotiated, initialised, enumerated, described. The probe child and the host run
// exactly this, so that what the child saw is what the host will see.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/host/call/library.h"
#include "core/host/find/manifest.h"

namespace keirin {

// What the plugin said about one hardware item.
struct FoundDevice {
  krn_dev* dev = nullptr;  // null: not used
  std::string why_not;
  krn_device_desc desc{};  // its strings live as long as the device
};

class PluginSession {
 public:
  // Identity that the library must confirm.
  struct Identity {
    std::string library, guid_text, version;
  };
  // `on_stage` is told each of kProbeStages before it begins. The host context must outlive the session.
  static Result<std::unique_ptr<PluginSession>> start(const Identity& identity, krn_host* host, uint32_t role,
                                                      const std::vector<HardwareItem>& hardware,
                                                      const std::function<void(const char*)>& on_stage);
  ~PluginSession() { (void)shutdown(); }
  PluginSession(const PluginSession&) = delete;

  // Once; later calls do nothing. No device may be used afterwards.
  Status shutdown();

  const LoadedPlugin& tables() const { return loaded_; }
  const std::vector<FoundDevice>& devices() const { return devices_; }  // parallel to the hardware list

 private:
  PluginSession() = default;
  Status confirm(const Identity& identity) const;
  Status enumerate(const std::vector<HardwareItem>& hardware);
  Status describe();

  std::string library_;
  LoadedPlugin loaded_;
  krn_plugin* plugin_ = nullptr;
  std::vector<FoundDevice> devices_;
};

}  // namespace keirin
