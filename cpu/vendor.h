// SPDX-License-Identifier: Apache-2.0
//
// Contractions, also of groups of rows, and recurrent cells by oneDNN, with elementwise epilogues as post-ops. Threads are OpenMP's, which
// LibTorch shares by soname: steps run only on the thread that entered `run`, but for products of groups, which run on the host's pool. A
// shape for which oneDNN has nothing but its reference implementation is not taken.
#pragma once

#include <memory>
#include <string>

#include "plugins/processor/library.h"
#include "plugins/processor/machine.h"

namespace keirin::cpu {

// Why oneDNN must not be used in this process (two OpenMP run times), or empty. Looked up once.
const std::string& vendor_obstacle();

// Whether oneDNN has an optimised implementation; on false, `why_not` says what is in the way. `native_bf16`: the CPU
// multiplies bf16 itself. `num_threads`: how many may share a product of groups.
bool vendor_takes(const codegen::AnchorDesc& anchor, bool native_bf16, std::string& why_not, int num_threads = 1);
// Whether the epilogue's arithmetic is exactly the op's.
bool vendor_takes_post_op(const codegen::AnchorDesc& anchor, const codegen::PostOp& post);
// Whether the epilogue makes a number of a NaN.
bool vendor_drops_nan(const codegen::PostOp& post);

// Creates the primitive, and the packed weights where the anchor asks for them and the host has them. Throws kit::Error.
std::unique_ptr<codegen::Step> make_vendor_step(const codegen::AnchorDesc& anchor, const codegen::CompileContext& context,
                                                int num_threads = 1);

// These as the seam has them. `packed`: constant weights may be kept in oneDNN's own layouts. Under fast numerics a NaN may become
// a number in an epilogue.
std::unique_ptr<const processor::Library> make_onednn(const processor::Machine& machine, const krn_policy& policy, bool packed);

// Bytes held by packs that are alive in this process.
int64_t packed_weight_bytes();

}  // namespace keirin::cpu
