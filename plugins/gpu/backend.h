// SPDX-License-Identifier: Apache-2.0
//
// The backend of the code generator for GPUs: generated kernels and those written by hand by the vendor's compiler,
// products, convolutions and attention by its libraries. One for a device and policy; generated code is the process's.
#pragma once

#include <memory>

#include "plugins/gpu/choose.h"
#include "plugins/gpu/code_store.h"
#include "plugins/gpu/device.h"
#include "plugins/gpu/launch.h"
#include "plugins/gpu/numerics.h"

namespace keirin::gpu {

class GpuBackend : public codegen::Backend {
 public:
  // `context` null: compiles, but loads nothing, for machines without the device. Both outlive the backend's steps.
  GpuBackend(const Gpu& gpu, const Context* context, const krn_policy* policy);

  const codegen::TargetInfo& target() const override { return gpu_.info; }
  void take_what_is_there() override { code_.only_known = true; }
  bool takes_anchor(const codegen::AnchorDesc& anchor, std::string& why_not) const override;
  bool takes_post_op(const codegen::AnchorDesc& anchor, const codegen::PostOp& post) const override;
  std::string together_key(const codegen::Kernel& kernel) const override;
  std::vector<std::unique_ptr<codegen::Step>> lower_kernels(std::span<const codegen::Together> of_steps,
                                                            const codegen::CompileContext& context,
                                                            uint32_t& generated) override;
  std::shared_ptr<const codegen::AnchorChoice> choose_anchor(const codegen::AnchorDesc& anchor) const override;
  void prepare_anchors(std::span<const codegen::ChosenAnchor> anchors) override;
  std::unique_ptr<codegen::Step> lower_anchor(const codegen::ChosenAnchor& anchor,
                                              const codegen::CompileContext& context) override;
  bool joins(std::span<const codegen::AnchorDesc* const> those, const codegen::AnchorDesc& next) const override;
  std::unique_ptr<codegen::Step> lower_joined(std::span<const codegen::AnchorDesc* const> anchors,
                                              const codegen::CompileContext& context) override;
  std::unique_ptr<codegen::Step> lower_csr(const codegen::Csr& csr, const codegen::CompileContext& context) override;
  void save_code(std::span<const codegen::Together> steps, std::vector<uint8_t>& out) const override;
  void load_code(std::span<const uint8_t> bytes) override;
  // Architecture, compiler, options, numerics.
  std::string token() const override;
  uint64_t code_bytes() const override { return code_store().code_bytes(); }

 private:
  Effort effort() const { return code_.only_known ? Effort::kAtOnce : Effort::kTimed; }
  std::vector<std::vector<Room>> rooms(std::span<const codegen::Together> of_steps) const;
  std::vector<CodeStore::Wanted> wanted(std::span<const std::vector<Room>> of_steps) const;

  const Gpu& gpu_;
  const Context* context_;
  Numerics numerics_;
  CodeTarget code_;
};

}  // namespace keirin::gpu
