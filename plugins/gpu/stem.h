// SPDX-License-Identifier: Apache-2.0
//
// A convolution of a few channels whose stride is above 1, as the first of an image network is, as one of stride 1: the pixels
// that a step of the stride passes over become channels ("space to depth"). A library fills few channels up to what matrix units
// take, and is left with a tenth of their speed. For rows (columns likewise), with i = stride * a + u:
//   y[o, p] = sum over c, i of x[c, stride * p + i - padding] * w[o, c, i]
//           = sum over (c, u), a of X[(c, u), p + a] * W[o, (c, u), a]
// W has zeros where i is outside w: what is not finite in x reaches one row and one column of y more than it would.
#pragma once

#include <memory>
#include <optional>

#include "plugins/gpu/numerics.h"
#include "plugins/gpu/plan.h"
#include "plugins/gpu/text_step.h"

namespace keirin::gpu {

struct Stem {
  TextKernel regroup;     // writes X and W, channels innermost, into its workspace
  int64_t filter_at = 0;  // where W begins there, in bytes; X is at the start
  ConvProblem conv;       // over X and W, to the anchor's own result, with its epilogue
};

// None where the convolution is of another kind, and under strict numerics.
std::optional<Stem> stem_of(const codegen::AnchorDesc& anchor, const Numerics& numerics);
// Seconds of `regroup`, by what it moves.
double regroup_seconds(const Stem& stem, const codegen::AnchorDesc& anchor, const codegen::TargetInfo& target);
std::unique_ptr<codegen::Step> make_stem(const Stem& stem, const codegen::AnchorDesc& anchor, const CodeTarget& target,
                                         const PlanLibrary& library, bool load);

}  // namespace keirin::gpu
