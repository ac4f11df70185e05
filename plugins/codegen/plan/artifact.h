// SPDX-License-Identifier: Apache-2.0
//
// The body of an artifact: the generated code of an executable and which tensors its kernels store, framed so that damaged bytes and
// bytes of another region are refused before anything looks inside. No weights; the plan is made again from the region and what is
// stored, and checked as it was at first, which costs less than to trust one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plugins/codegen/plan/compiled_region.h"

namespace keirin::codegen {

std::vector<uint8_t> save_artifact(const CompiledRegion& executable, const Backend& backend, std::span<const uint8_t, 32> region_hash);

// Gives the code back to the backend and compiles the region with it. Throws (corrupt) for a damaged body or another region's.
std::unique_ptr<CompiledRegion> load_artifact(std::span<const uint8_t> body, std::span<const uint8_t> region,
                                          std::span<const uint8_t, 32> region_hash, Backend& backend, const CompileContext& context);

}  // namespace keirin::codegen
