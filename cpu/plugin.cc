// SPDX-License-Identifier: Apache-2.0
//
// The x86-64 plugin: the processors' one over x86's levels and oneDNN.
#include "cpu/device.h"
#include "cpu/vendor.h"
#include "plugins/processor/plugin.h"

namespace keirin::cpu {
namespace {

// Candidate 0 keeps constant weights in oneDNN's layouts, a second copy; candidate 1 reads them as they are.
std::unique_ptr<const processor::Library> library(const processor::Machine& machine, const krn_policy& policy, uint32_t candidate) {
  return make_onednn(machine, policy, candidate == 0);
}

const processor::Vendor kVendor{.isa = &isa(),
                                .look = look,
                                .library = library,
                                .traits = {.exec_flags = KRN_EXEC_CONCURRENT,
                                           .num_candidates = 2,
                                           .candidates = "there are two candidates: packed and plain weights",
                                           .keeps_constants = true}};

std::unique_ptr<kit::Plugin> make_plugin(const kit::Host&, const krn_config& config) { return processor::make_plugin(kVendor, config); }

}  // namespace
}  // namespace keirin::cpu

KRN_PLUGIN((keirin::kit::About{.guid = "6b726e00-6370-7538-8000-783836363401",
                               .version = "0.1.0",
                               .description = "llvm=19.1\nonednn=3.2\nlicence=Apache-2.0\n",
                               .capabilities = KRN_CAP_CONCURRENT_COMPILE | KRN_CAP_DETERMINISTIC,
                               .artifacts = true}),
           keirin::cpu::make_plugin)
