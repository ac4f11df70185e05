// SPDX-License-Identifier: Apache-2.0
//
// Binary to run: one generated kernel as a step, or several of equal code as few launches. Arguments are packed when the step is made; a
// run gathers the pointers and launches on the host's stream, without waiting and without allocating.
#pragma once

#include <memory>
#include <vector>

#include "plugins/gpu/code_store.h"
#include "plugins/codegen/backend.h"

namespace keirin::gpu {

std::unique_ptr<codegen::Step> make_kernel_step(const Driver& driver, const codegen::Kernel& kernel, const codegen::Schedule& schedule,
                                                const Functions& functions);

// Kernels of one launch.
struct Room {
  codegen::Together kernels;
  codegen::Schedule schedule;  // with `many`, room for that many; its sizes are those of the first kernel
};
// Whether the kernel may share a launch, under its schedule; and the launches that take all of these, which may if there are several, as
// few as there can be. One alone has its own.
bool shares_launch(const codegen::Kernel& kernel, const codegen::Schedule& schedule, const codegen::GpuFacts& facts);
std::vector<Room> rooms_of(const codegen::Together& kernels, const codegen::GpuFacts& facts);
// `functions`: one for each room.
std::unique_ptr<codegen::Step> make_together_step(const Driver& driver, const std::vector<Room>& rooms, const codegen::GpuFacts& facts,
                                                  const std::vector<Functions>& functions);

}  // namespace keirin::gpu
