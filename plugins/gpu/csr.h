// SPDX-License-Identifier: Apache-2.0
//
// CSR on the device: the step that sets row_ptr and perm of a scatter's index before the kernels that walk over its
// rows.
#pragma once

#include <memory>
#include <string>

#include "plugins/gpu/device.h"

namespace keirin::gpu {

// `load` false: for machines without the device.
std::unique_ptr<codegen::Step> make_csr_step(const codegen::Csr& csr, const Gpu& gpu, const CodeTarget& target,
                                             bool load);
// Its code's name in the store, which artifacts carry.
std::string csr_text(const Driver& driver);
std::string csr_code_name(const CodeTarget& target);

}  // namespace keirin::gpu
