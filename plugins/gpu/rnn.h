// SPDX-License-Identifier: Apache-2.0
//
// LSTM and GRU in f32, bf16 and f16. For each layer and direction one product makes the inputs' part of all gates (the library, in f32),
// and one launch goes through the steps: every block keeps its lines of the recurrent matrix in registers and shared memory, and the blocks
// pass each state on through memory, without a barrier between them. Libraries launch two kernels a step.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "plugins/gpu/device.h"
#include "plugins/gpu/numerics.h"
#include "plugins/gpu/text_step.h"

namespace keirin::gpu {

// How the units and rows of a layer lie over blocks.
struct RnnLayout {
  int units = 0;         // of a block
  int kept = 0;          // of a wave's pieces of the matrix, those in registers
  int64_t blocks = 0;    // that share rows
  int64_t groups = 0;    // of such blocks
  int64_t sets = 0;      // of 16 rows, that a group takes in turn
  int64_t shared_bytes = 0;
  double cycles = 0;     // of a step, estimated
};

// What a layer's elements are to the matrix units. Those that take f32 by its upper bits get it rounded to TF32 where eager may do so; else
// each number is two such ones, and a product three, as exact as f32's. Others take it as it is.
struct RnnPrecision {
  int64_t bytes = 2;     // of an element
  int64_t products = 1;  // of the matrix units, for one
  bool tf32 = false;     // operands are rounded, the inputs too
};
RnnPrecision rnn_precision(const codegen::AnchorDesc& anchor, const Gpu& gpu, const Numerics& numerics);

// The fastest layout that fits the device, by estimate.
std::optional<RnnLayout> rnn_layout(int64_t gates, int64_t hidden, int64_t batch, const RnnPrecision& precision, const Gpu& gpu);
bool rnn_taken(const codegen::AnchorDesc& anchor, const Gpu& gpu, const Numerics& numerics, std::string& why_not);
// The launch of one layer and direction of an anchor that is taken, over buffers numbered as RnnStep does; for tests.
TextKernel rnn_kernel(const codegen::AnchorDesc& anchor, int64_t layer, int64_t direction, const Gpu& gpu, const Numerics& numerics);
std::unique_ptr<codegen::Step> make_rnn(const codegen::AnchorDesc& anchor, const Gpu& gpu, const CodeTarget& target,
                                        const Numerics& numerics, bool load);

}  // namespace keirin::gpu
