// SPDX-License-Identifier: Apache-2.0
//
// The NVIDIA plugin: which devices it takes, over plugins/gpu. Runs may overlap, on any streams; compiles may too,
// because the store of code locks itself. All work is done in LibTorch's primary context.
#include "cuda/device.h"
#include "plugins/gpu/vendor_plugin.h"

namespace keirin::cuda {
namespace {

constexpr gpu::Vendor kNvidia = {
    .gpu = "an NVIDIA GPU", .torch_type = 2, .pci_vendor = 0x10de, .look = look_at_gpu, .imagine = imagine_for_launches};

std::unique_ptr<kit::Plugin> make_plugin(const kit::Host&, const krn_config&) { return gpu::make_vendor_plugin(kNvidia); }

}  // namespace
}  // namespace keirin::cuda

KRN_PLUGIN((keirin::kit::About{.guid = "6b726e00-6375-6461-8000-6e7669646961",
                               .version = "0.1.0",
                               .description = "compiler=nvrtc\nlibraries=cublaslt\nlicence=Apache-2.0\n",
                               .capabilities = KRN_CAP_CONCURRENT_COMPILE | KRN_CAP_DETERMINISTIC,
                               .artifacts = true}),
           keirin::cuda::make_plugin)
