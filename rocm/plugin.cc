// SPDX-License-Identifier: Apache-2.0
//
// The AMD plugin: which devices it takes, over plugins/gpu. Runs may overlap, on any streams; compiles may too, because
// the store of code locks itself. All work is done in LibTorch's primary context.
#include "plugins/kit/plugin.h"

#include "rocm/device.h"

namespace keirin::rocm {
namespace {

constexpr int32_t kTorchHip = 10;  // DLPack's device type
constexpr uint32_t kAmd = 0x1002;

class RocmPlugin : public kit::Plugin {
 public:
  std::unique_ptr<kit::Device> enumerate(const krn_hw& hardware, std::string& why_not) override {
    if (hardware.torch_type != kTorchHip && hardware.vendor_id != kAmd) {
      if (could_look(why_not)) why_not.clear();
      why_not = "not an AMD GPU" + (why_not.empty() ? "" : "; " + why_not);
      return nullptr;
    }
    std::string pci = kit::text(hardware.uid);
    pci = pci.rfind("pci:", 0) == 0 ? pci.substr(4) : "";
    const int index = hardware.torch_type == kTorchHip ? hardware.torch_index : -1;
    std::unique_ptr<gpu::Gpu> gpu = look_at_gpu(pci, index, why_not);
    return gpu ? std::make_unique<gpu::PluginDevice>(std::move(gpu)) : nullptr;
  }
};

std::unique_ptr<kit::Plugin> make_plugin(const kit::Host&, const krn_config&) { return std::make_unique<RocmPlugin>(); }

}  // namespace
}  // namespace keirin::rocm

KRN_PLUGIN((keirin::kit::About{.guid = "6b726e00-726f-636d-8000-616d64677075",
                               .version = "0.1.0",
                               .description = "compiler=hiprtc\nlibraries=hipblaslt\ntier=3 (never run on an AMD GPU)\nlicence=Apache-2.0\n",
                               .capabilities = KRN_CAP_CONCURRENT_COMPILE | KRN_CAP_DETERMINISTIC,
                               .artifacts = true}),
           keirin::rocm::make_plugin)
