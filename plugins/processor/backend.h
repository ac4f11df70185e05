// SPDX-License-Identifier: Apache-2.0
//
// A processor's backend of the code generator: kernels by LLVM, anchors by a library. One for a device; the code cache is the
// process's.
#pragma once

#include <memory>

#include "plugins/codegen/backend.h"
#include "plugins/codegen/llvm/code_cache.h"
#include "plugins/processor/library.h"
#include "plugins/processor/machine.h"

namespace keirin::processor {

// Generated code of the process. Never destroyed: executables may outlive everything.
codegen::native::CodeCache& code_cache();

// What code for a policy must be like: contraction of a multiply and an add is off under strict numerics.
codegen::native::CpuTarget code_target(const Machine& machine, const krn_policy* policy);

class Backend final : public codegen::Backend {
 public:
  // `library` null: there is none, and products, convolutions and recurrent cells are left to eager. `machine` outlives this.
  Backend(const Machine& machine, const krn_policy* policy, std::unique_ptr<const Library> library);

  const codegen::TargetInfo& target() const override { return machine_.info; }
  void take_what_is_there() override { generates_ = false; }
  bool computes_row_classes() const override { return !generates_; }
  bool takes_anchor(const codegen::AnchorDesc& anchor, std::string& why_not) const override;
  bool takes_post_op(const codegen::AnchorDesc& anchor, const codegen::PostOp& post) const override;
  std::vector<std::unique_ptr<codegen::Step>> lower_kernels(std::span<const codegen::Together> of_steps,
                                                            const codegen::CompileContext& context, uint32_t& generated) override;
  std::unique_ptr<codegen::Step> lower_anchor(const codegen::ChosenAnchor& anchor, const codegen::CompileContext& context) override;
  void save_code(std::span<const codegen::Together> steps, std::vector<uint8_t>& out) const override;
  void load_code(std::span<const uint8_t> bytes) override;

  // Target, features that code may use, contraction.
  std::string code_identity() const;
  uint64_t code_bytes() const override { return code_cache().code_bytes(); }
  std::string token() const override { return code_identity() + (library_ ? library_->token() : std::string()); }

 private:
  const Machine& machine_;
  codegen::native::CpuTarget code_;
  std::unique_ptr<const Library> library_;
  bool generates_ = true;
};

}  // namespace keirin::processor
