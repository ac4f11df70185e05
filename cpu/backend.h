// SPDX-License-Identifier: Apache-2.0
//
// The x86 backend of the code generator: kernels by LLVM, anchors by oneDNN. One for a device; the code cache is the process's.
#pragma once

#include <memory>

#include "cpu/device.h"
#include "plugins/codegen/backend.h"
#include "plugins/codegen/llvm/code_cache.h"

namespace keirin::cpu {

// Generated code of the process. Never destroyed: executables may outlive everything.
codegen::native::CodeCache& code_cache();

// What code for a policy must be like: contraction of a multiply and an add is off under strict numerics.
codegen::native::CpuTarget code_target(const Machine& machine, const krn_policy* policy);

class CpuBackend : public codegen::Backend {
 public:
  // `packed`: constant weights of anchors may be kept in oneDNN's own layouts.
  CpuBackend(const Machine& machine, const krn_policy* policy, bool packed = true);

  const codegen::TargetInfo& target() const override { return machine_.info; }
  bool takes_anchor(const codegen::AnchorDesc& anchor, std::string& why_not) const override;
  bool takes_post_op(const codegen::AnchorDesc& anchor, const codegen::PostOp& post) const override;
  std::vector<std::unique_ptr<codegen::Step>> lower_kernels(std::span<const codegen::Kernel> kernels,
                                                            const codegen::CompileContext& context, uint32_t& generated) override;
  std::unique_ptr<codegen::Step> lower_anchor(const codegen::AnchorDesc& anchor, const codegen::CompileContext& context) override;
  void save_code(std::span<const codegen::Kernel> kernels, std::vector<uint8_t>& out) const override;
  void load_code(std::span<const uint8_t> bytes) override;

  // Target, features that code may use, contraction.
  std::string code_identity() const;
  uint64_t code_bytes() const override { return code_cache().code_bytes(); }
  std::string token() const override { return code_identity() + (packed_ ? "" : "\nplain weights") + (drops_nan_ ? "\nfast epilogues" : ""); }

 private:
  const Machine& machine_;
  codegen::native::CpuTarget code_;
  bool packed_ = true;
  bool drops_nan_ = false;  // fast numerics: a NaN may become a number in an epilogue
};

}  // namespace keirin::cpu
