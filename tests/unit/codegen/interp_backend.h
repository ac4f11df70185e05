// SPDX-License-Identifier: Apache-2.0
//
// A Backend that interprets kernels in plain C++ (double), so that lowering and fusion are tested without a code generator.
// It checks what generated code cannot: every access stays inside its buffer.
#pragma once

#include <map>

#include "plugins/codegen/backend.h"

namespace keirin::codegen::test {

class InterpBackend : public Backend {
 public:
  TargetInfo info = [] {
    TargetInfo out;
    out.joins_deviations = true;
    return out;
  }();
  int deviations = 0;  // passes lowered so far that sum the squares of differences from a mean that they find themselves
  bool take_pools = false;
  bool take_anchors = true;
  bool take_every_post_op = false;  // whatever scalar row is offered: its first operand is the product
  bool only_dense_rows = false;  // a contraction's result has its last axis dense, and anything else is an error when lowered

  bool puts_together = false;    // kernels of equal structure, which then run from the last to the first
  bool only_dense_lines = false;  // a contraction's operands have one of their last two axes dense
  bool row_classes = false;
  std::vector<int64_t> rows;  // of the products lowered so far

  const TargetInfo& target() const override { return info; }
  bool computes_row_classes() const override { return row_classes; }
  bool supports(uint32_t, uint8_t, std::string&) const override { return true; }
  bool takes_anchor(const AnchorDesc& anchor, std::string& why_not) const override;
  bool takes_post_op(const AnchorDesc& anchor, const PostOp& post) const override;
  std::string together_key(const Kernel& kernel) const override;
  std::vector<std::unique_ptr<Step>> lower_kernels(std::span<const Together> steps, const CompileContext& context,
                                                   uint32_t& generated) override;
  std::unique_ptr<Step> lower_anchor(const ChosenAnchor& anchor, const CompileContext& context) override;
  void save_code(std::span<const Together> steps, std::vector<uint8_t>& out) const override;
  void load_code(std::span<const uint8_t> bytes) override;

 private:
  std::map<std::string, int> known_;  // structure keys "compiled" so far
};

// Runs one kernel on the given buffers (by executable id).
krn_code interpret(const Kernel& kernel, void* const* buffers);

}  // namespace keirin::codegen::test
