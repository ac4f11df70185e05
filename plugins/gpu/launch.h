// SPDX-License-Identifier: Apache-2.0
//
// Binary to run: one generated kernel as a step. Arguments are packed when the step is made; a run gathers the pointers and
// launches on the host's stream, without waiting and without allocating.
#pragma once

#include <memory>

#include "plugins/gpu/code_store.h"
#include "plugins/codegen/backend.h"

namespace keirin::gpu {

std::unique_ptr<codegen::Step> make_kernel_step(const Driver& driver, const codegen::Kernel& kernel, const codegen::Schedule& schedule,
                                                const Functions& functions);

}  // namespace keirin::gpu
