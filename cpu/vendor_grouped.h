// SPDX-License-Identifier: Apache-2.0
//
// Products of groups of rows, each group by its own weights: how many rows a group has is known when it runs. oneDNN's primitives are of
// fixed sizes, so there is one for each of some numbers of rows, and a group is cut into those.
#pragma once

#include <memory>
#include <string>

#include "plugins/codegen/backend.h"

namespace keirin::cpu {

// As vendor_takes, for grouped_matmul. `num_threads`: how many may share it.
bool grouped_takes(const codegen::AnchorDesc& anchor, int num_threads, std::string& why_not);
std::unique_ptr<codegen::Step> make_grouped(const codegen::AnchorDesc& anchor, int num_threads, const codegen::CompileContext& context);

}  // namespace keirin::cpu
