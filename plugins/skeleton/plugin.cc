// SPDX-License-Identifier: Apache-2.0
//
// Entry of the plugin. It drives the host CPU with plain loops, so that it works on any machine; a real plugin puts its driver behind
// the same functions.
#include "device.h"

namespace skeleton_plugin {

class Plugin final : public keirin::kit::Plugin {
 public:
  // Called once for each piece of hardware that the host found. Take your own, say why not for the others.
  std::unique_ptr<keirin::kit::Device> enumerate(const krn_hw& hardware, std::string& why_not) override {
    constexpr int32_t kDlpackCpu = 1;
    if (hardware.torch_type != kDlpackCpu) {
      why_not = "skeleton runs on the CPU only";
      return nullptr;
    }
    return make_device();
  }
};

// Once per process. Throw kit::Error(KRN_STATUS_unsupported, why) here if a driver or a licence is absent. The host of this release
// passes no options in `config` (README.md says what to do instead).
static std::unique_ptr<keirin::kit::Plugin> make(const keirin::kit::Host&, const krn_config&) { return std::make_unique<Plugin>(); }

}  // namespace skeleton_plugin

// The guid is the manifest's. With `artifacts` the host compiles in a process of its own and keeps what was compiled.
KRN_PLUGIN((keirin::kit::About{.guid = "5c1e6a52-90c7-4d0e-9a53-3f1d8a7be001",
                               .version = PLUGIN_VERSION,
                               .description = "vendor=example\nlicence=Apache-2.0\n",
                               .capabilities = KRN_CAP_CONCURRENT_COMPILE | KRN_CAP_DETERMINISTIC,
                               .artifacts = true}),
           skeleton_plugin::make)
