// SPDX-License-Identifier: Apache-2.0
//
// Entry of the skeleton plugin: copy this folder, rename `skeleton`, and replace what the comments name. It drives the host CPU
// with plain loops, so that it works on any machine; a real plugin puts its driver behind the same five functions.
#include "device.h"

namespace skeleton {

class SkeletonPlugin : public keirin::kit::Plugin {
 public:
  explicit SkeletonPlugin(const keirin::kit::Host& host) : host_(host) {}

  // Called once for each piece of hardware that the host found. Take your own, say why not for the others.
  std::unique_ptr<keirin::kit::Device> enumerate(const krn_hw& hardware, std::string& why_not) override {
    constexpr int32_t kDlpackCpu = 1;
    if (hardware.torch_type != kDlpackCpu) {
      why_not = "the skeleton runs on the CPU only";
      return nullptr;
    }
    return make_device(host_);
  }

 private:
  keirin::kit::Host host_;
};

static std::unique_ptr<keirin::kit::Plugin> make(const keirin::kit::Host& host, const krn_config&) {
  return std::make_unique<SkeletonPlugin>(host);
}

}  // namespace skeleton

// The guid is the manifest's: make your own with uuidgen.
KRN_PLUGIN((keirin::kit::About{.guid = "5c1e6a52-90c7-4d0e-9a53-3f1d8a7be001",
                               .version = "0.1.0",
                               .description = "vendor=example\nlicence=Apache-2.0\n",
                               .capabilities = KRN_CAP_CONCURRENT_COMPILE | KRN_CAP_DETERMINISTIC}),
           skeleton::make)
