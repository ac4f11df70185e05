// SPDX-License-Identifier: Apache-2.0
//
// The CUDA backend of the code generator: kernels by NVRTC, products by cuBLASLt, convolutions by
// cuDNN. One for a device and policy; generated code is the process's.
#pragma once

#include <memory>
#include <optional>

#include "cuda/device.h"
#include "cuda/text_step.h"
#include "plugins/codegen/backend.h"

namespace keirin::cuda {

// What code for a policy must be like (emit.cc).
CodeTarget code_target(const Gpu& gpu, const krn_policy* policy);
// Whether the op table's row can be claimed for that dtype (support.cc).
bool supports_row(uint32_t op, uint8_t dtype, std::string& why_not);
// A hand-written kernel for the anchor, if there is one that suits it (vendor.cc).
std::optional<TextKernel> own_kernel(const codegen::AnchorDesc& anchor, const Gpu& gpu, uint32_t numerics, std::string& why_not);
// Independent anchors in one launch.
bool may_join(std::span<const codegen::AnchorDesc* const> those, const codegen::AnchorDesc& next);
std::optional<TextKernel> joined_kernel(std::span<const codegen::AnchorDesc* const> anchors, const Gpu& gpu, std::string& why_not);
// Anchors (vendor.cc). `has_device` false: judged by shapes alone, no library is opened.
bool vendor_takes(const codegen::AnchorDesc& anchor, const Gpu& gpu, uint32_t numerics, bool has_device, std::string& why_not);
bool vendor_takes_post_op(const codegen::AnchorDesc& anchor, const codegen::PostOp& post, const Gpu& gpu, uint32_t numerics, bool has_device);
// What make_vendor_step will be asked for: libraries build their plans side by side.
void prepare_vendor(std::span<const codegen::AnchorDesc* const> anchors, uint32_t numerics);
std::unique_ptr<codegen::Step> make_vendor_step(const codegen::AnchorDesc& anchor, const Gpu& gpu, const CodeTarget& target, const krn_policy* policy,
                                                bool load);
// CSR on the device (csr.cc).
std::unique_ptr<codegen::Step> make_csr_step(const codegen::Csr& csr, const Gpu& gpu, const CodeTarget& target, bool load);
std::string csr_code_name(const CodeTarget& target);

class CudaBackend : public codegen::Backend {
 public:
  // `context` null: compiles, but loads nothing, for machines without the device. Both outlive the backend's steps.
  CudaBackend(const Gpu& gpu, const Context* context, const krn_policy* policy);

  const codegen::TargetInfo& target() const override { return gpu_.info; }
  bool supports(uint32_t op, uint8_t dtype, std::string& why_not) const override;
  bool takes_anchor(const codegen::AnchorDesc& anchor, std::string& why_not) const override;
  bool takes_post_op(const codegen::AnchorDesc& anchor, const codegen::PostOp& post) const override;
  std::vector<std::unique_ptr<codegen::Step>> lower_kernels(std::span<const codegen::Kernel> kernels,
                                                            const codegen::CompileContext& context, uint32_t& generated) override;
  void prepare_anchors(std::span<const codegen::AnchorDesc* const> anchors) override;
  std::unique_ptr<codegen::Step> lower_anchor(const codegen::AnchorDesc& anchor, const codegen::CompileContext& context) override;
  bool joins(std::span<const codegen::AnchorDesc* const> those, const codegen::AnchorDesc& next) const override;
  std::unique_ptr<codegen::Step> lower_joined(std::span<const codegen::AnchorDesc* const> anchors, const codegen::CompileContext& context) override;
  std::unique_ptr<codegen::Step> lower_csr(const codegen::Csr& csr, const codegen::CompileContext& context) override;
  void save_code(std::span<const codegen::Kernel> kernels, std::vector<uint8_t>& out) const override;
  void load_code(std::span<const uint8_t> bytes) override;

  // What artifacts are checked against: architecture, compiler, options.
  std::string code_identity() const;

 private:
  std::vector<CodeStore::Wanted> wanted(std::span<const codegen::Kernel> kernels) const;

  const Gpu& gpu_;
  const Context* context_;
  uint32_t numerics_ = 0, policy_flags_ = 0;
  CodeTarget code_;
};

}  // namespace keirin::cuda
