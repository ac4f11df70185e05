// SPDX-License-Identifier: Apache-2.0
//
// The class of machines, or of their accelerators, that are alike: ratios are compared within one.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace keirin::tools::matrix {

// Whether programs run on a processor of another kind, as under qemu's user mode: what the kernel says of it is of the machine below.
bool is_emulated(const nlohmann::json& machine);

// "x86-avx512-2c-vm", "aarch64-2c-emulated", or "cuda-sm_90-h200" of an accelerator: of the fields of a `machine` record.
std::string class_of(const nlohmann::json& machine);

}  // namespace keirin::tools::matrix
