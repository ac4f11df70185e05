// SPDX-License-Identifier: Apache-2.0
//
// Who runs an anchor on a GPU: a library of its vendor, or a kernel written by hand.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "plugins/gpu/conv.h"
#include "plugins/gpu/device.h"
#include "plugins/gpu/numerics.h"
#include "plugins/gpu/text_step.h"

namespace keirin::gpu {

// A hand-written kernel for the anchor, if there is one that suits it.
std::optional<TextKernel> own_kernel(const codegen::AnchorDesc& anchor, const Gpu& gpu, const Numerics& numerics,
                                     std::string& why_not);
// Independent anchors in one launch.
bool may_join(std::span<const codegen::AnchorDesc* const> those, const codegen::AnchorDesc& next);
std::optional<TextKernel> joined_kernel(std::span<const codegen::AnchorDesc* const> anchors, const Gpu& gpu,
                                        std::string& why_not);

// kAtOnce: a call waits, so that nothing is timed or compiled, and no library is asked what it would do. Convolutions are planned as at
// other sizes then (PlanLibrary::at_once), products get the library's first guess, attention a kernel of ours unless the library's may be
// much faster, and recurrent layers are refused.
enum class Effort : uint8_t { kTimed, kAtOnce };

// Who runs an anchor.
struct Choice final : codegen::AnchorChoice {
  enum Runner : uint8_t { kOwnKernel, kConvolutions, kHeads, kProducts, kRecurrent };
  Runner runner = kOwnKernel;
  std::optional<TextKernel> kernel = {};   // kOwnKernel
  std::optional<ConvShares> shares = {};   // kConvolutions
  std::optional<HeadsProblem> heads = {};  // kHeads

  explicit Choice(Runner who) : runner(who) {}
};
// The one place that decides it; none with the reason where nobody does. `has_device` false: judged by shapes alone, no library is opened.
std::optional<Choice> choose(const codegen::AnchorDesc& anchor, const Gpu& gpu, const Numerics& numerics, bool has_device,
                             std::string& why_not, Effort effort = Effort::kTimed);
bool post_op_taken(const codegen::AnchorDesc& anchor, const codegen::PostOp& post, const Gpu& gpu, const Numerics& numerics,
                   bool has_device, Effort effort = Effort::kTimed);
// What make_anchor_step will be asked for: libraries build their plans side by side.
void prepare_plans(std::span<const codegen::ChosenAnchor> anchors, const Gpu& gpu, const Numerics& numerics);
std::unique_ptr<codegen::Step> make_anchor_step(const codegen::AnchorDesc& anchor, const Choice& choice, const Gpu& gpu,
                                                const CodeTarget& target, const Numerics& numerics, bool load,
                                                Effort effort = Effort::kTimed);

}  // namespace keirin::gpu
