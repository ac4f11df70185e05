// SPDX-License-Identifier: Apache-2.0
//
// Runs one generated kernel over the host's threads.
#pragma once

#include <memory>

#include "plugins/codegen/backend.h"
#include "plugins/codegen/llvm/arguments.h"

namespace keirin::processor {

std::unique_ptr<codegen::Step> make_kernel_step(const codegen::Kernel& kernel, codegen::native::KernelFunction function,
                                                const codegen::TargetInfo& target);

}  // namespace keirin::processor
