// SPDX-License-Identifier: Apache-2.0
//
// The NVIDIA plugin: which devices it takes, over plugins/gpu. Runs may overlap, on any streams; compiles may too,
// because the store of code locks itself. All work is done in LibTorch's primary context.
#include "plugins/kit/plugin.h"

#include "cuda/device.h"

namespace keirin::cuda {
namespace {

constexpr int32_t kTorchCuda = 2;  // DLPack's device type
constexpr uint32_t kNvidia = 0x10de;

class CudaPlugin : public kit::Plugin {
 public:
  std::unique_ptr<kit::Device> enumerate(const krn_hw& hardware, std::string& why_not) override {
    if (hardware.torch_type != kTorchCuda && hardware.vendor_id != kNvidia) {
      why_not = "not an NVIDIA GPU";
      return nullptr;
    }
    std::string pci = kit::text(hardware.uid);
    pci = pci.rfind("pci:", 0) == 0 ? pci.substr(4) : "";
    const int index = hardware.torch_type == kTorchCuda ? hardware.torch_index : -1;
    std::unique_ptr<gpu::Gpu> gpu = look_at_gpu(pci, index, why_not);
    return gpu ? std::make_unique<gpu::PluginDevice>(std::move(gpu)) : nullptr;
  }
};

std::unique_ptr<kit::Plugin> make_plugin(const kit::Host&, const krn_config&) { return std::make_unique<CudaPlugin>(); }

}  // namespace
}  // namespace keirin::cuda

KRN_PLUGIN((keirin::kit::About{.guid = "6b726e00-6375-6461-8000-6e7669646961",
                               .version = "0.1.0",
                               .description = "compiler=nvrtc\nlibraries=cublaslt\nlicence=Apache-2.0\n",
                               .capabilities = KRN_CAP_CONCURRENT_COMPILE | KRN_CAP_DETERMINISTIC,
                               .artifacts = true}),
           keirin::cuda::make_plugin)
