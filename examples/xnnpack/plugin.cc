// SPDX-License-Identifier: Apache-2.0
//
// Entry of the plugin: it drives the host CPU, if XNNPACK is here and knows it.
#include "device.h"

namespace xnnpack_plugin {

class Plugin final : public keirin::kit::Plugin {
 public:
  std::unique_ptr<keirin::kit::Device> enumerate(const krn_hw& hardware, std::string& why_not) override {
    constexpr int32_t kDlpackCpu = 1;
    if (hardware.torch_type != kDlpackCpu) {
      why_not = "XNNPACK runs on the CPU only";
      return nullptr;
    }
    return make_device();
  }
};

static std::unique_ptr<keirin::kit::Plugin> make(const keirin::kit::Host&, const krn_config&) {
  engine();
  return std::make_unique<Plugin>();
}

}  // namespace xnnpack_plugin

KRN_PLUGIN((keirin::kit::About{.guid = "29a2f9fd-597e-45fc-853f-f97e925c0843",
                               .version = PLUGIN_VERSION,
                               .description = "vendor=example\nengine=" XNNPACK_SONAME "\nlicence=Apache-2.0\n",
                               .capabilities = KRN_CAP_CONCURRENT_COMPILE | KRN_CAP_DETERMINISTIC,
                               .artifacts = true}),
           xnnpack_plugin::make)
