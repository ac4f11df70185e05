// SPDX-License-Identifier: Apache-2.0
//
// XNNPACK has no compiled form that could be kept: its runtime is pointers to functions and to packed weights. So an artifact is the
// statement that the region was compiled by this very XNNPACK, in a process that was allowed to crash; `load` makes the runtime again.
#include "device.h"

namespace xnnpack_plugin {
namespace {

constexpr std::string_view kMagic = "xnnpack 1\n";

}  // namespace

// Nothing of XNNPACK is in the artifact, so that its name is all that has to agree; it has no version that it could be asked for.
std::string artifact_token() { return std::string(kMagic) + XNNPACK_SONAME; }

std::string save(const Program& program) { return std::string(kMagic) + program.region; }

void check_artifact(std::string_view body, std::string_view region) {
  if (body != std::string(kMagic) + std::string(region))
    throw keirin::kit::Error(KRN_STATUS_corrupt, "the artifact is damaged, or another region's");
}

}  // namespace xnnpack_plugin
