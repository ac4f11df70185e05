// SPDX-License-Identifier: Apache-2.0
//
// The AArch64 plugin: the processors' one over NEON's and SVE's levels. It has no library: products, convolutions and recurrent
// cells stay eager (README.md says why).
#include "arm/device.h"
#include "plugins/processor/plugin.h"

namespace keirin::arm {
namespace {

const processor::Vendor kVendor{.isa = &isa(), .look = look, .library = nullptr, .traits = {.exec_flags = KRN_EXEC_CONCURRENT}};

std::unique_ptr<kit::Plugin> make_plugin(const kit::Host&, const krn_config& config) { return processor::make_plugin(kVendor, config); }

}  // namespace
}  // namespace keirin::arm

KRN_PLUGIN((keirin::kit::About{.guid = "6b726e00-6172-6d38-8000-616172636801",
                               .version = "0.1.0",
                               .description = "llvm=19.1\nlicence=Apache-2.0\n",
                               .capabilities = KRN_CAP_CONCURRENT_COMPILE | KRN_CAP_DETERMINISTIC,
                               .artifacts = true}),
           keirin::arm::make_plugin)
