// SPDX-License-Identifier: Apache-2.0
//
// The class of machines, or of their accelerators, that are alike: ratios are compared within one.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace keirin::tools::matrix {

// "x86-avx512-2c-vm", or "cuda-sm_90-h200" of an accelerator: of the fields of a `machine` record.
std::string class_of(const nlohmann::json& machine);

}  // namespace keirin::tools::matrix
