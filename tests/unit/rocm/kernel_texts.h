// SPDX-License-Identifier: Apache-2.0
//
// What the rocm plugin would compile for a device that is imagined: generated kernels of the cases that the emulated
// and the real devices run, and the kernels written by hand.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plugins/gpu/text_step.h"
#include "tests/unit/cuda/anchor_cases.h"
#include "tests/unit/cuda/kernel_cases.h"
#include "tests/unit/cuda/rnn_case.h"

namespace keirin::test {

struct ModuleText {
  std::string text;  // with the prelude
  std::vector<std::string> symbols;
  bool generated = false;
};

// `all`: every schedule that a kernel may get, else the one that it gets; with a full one of a small device.
std::vector<codegen::Schedule> rocm_schedules(const codegen::Kernel& kernel, const std::string& arch, bool all);
std::vector<ModuleText> generated_texts(const std::string& arch, int64_t length, bool all);
// A bias, a residual and a ReLU on rows with gaps between them. Buffers: the rows, the bias, the residual.
inline constexpr int64_t kTailRows = 41, kTailColumns = 67, kTailStride = 70;
gpu::TextKernel tail_kernel(uint8_t dtype);
// What is there before it, with a NaN, and what it leaves: all of it exact in the dtype.
struct Tail {
  explicit Tail(uint8_t dtype);
  std::vector<char> y, bias, residual, want;
};
// Attention, recurrent layers, products of few rows, bags, the copy of a first convolution, tails, rows of a scatter: those that the target
// takes.
std::vector<ModuleText> own_texts(const std::string& arch);
std::optional<gpu::TextKernel> own_kernel_for(const AnchorCase& c, const std::string& arch, std::string& why_not);
// `units`: of the device; 0: as many as one of its kind has.
gpu::TextKernel rnn_kernel_for(const RnnCase& c, const std::string& arch, int units);

}  // namespace keirin::test
