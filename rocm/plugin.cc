// SPDX-License-Identifier: Apache-2.0
//
// The AMD plugin: which devices it takes, over plugins/gpu. Runs may overlap, on any streams; compiles may too, because
// the store of code locks itself. All work is done in LibTorch's primary context.
#include "plugins/gpu/vendor_plugin.h"
#include "rocm/device.h"

namespace keirin::rocm {
namespace {

constexpr gpu::Vendor kAmd = {.gpu = "an AMD GPU",
                              .torch_type = 10,
                              .pci_vendor = 0x1002,
                              .look = look_at_gpu,
                              .could_look = could_look,
                              .imagine = imagine_for_launches};

std::unique_ptr<kit::Plugin> make_plugin(const kit::Host&, const krn_config&) { return gpu::make_vendor_plugin(kAmd); }

}  // namespace
}  // namespace keirin::rocm

KRN_PLUGIN((keirin::kit::About{.guid = "6b726e00-726f-636d-8000-616d64677075",
                               .version = "0.1.0",
                               .description = "compiler=hiprtc\nlibraries=hipblaslt, rocblas, miopen\nlicence=Apache-2.0\n",
                               .capabilities = KRN_CAP_CONCURRENT_COMPILE | KRN_CAP_DETERMINISTIC,
                               .artifacts = true}),
           keirin::rocm::make_plugin)
