// SPDX-License-Identifier: Apache-2.0
//
// The backend: what the code generator plans becomes launchable here.
#include <stdexcept>

#include "cpu/backend.h"
#include "cpu/launch.h"
#include "cpu/vendor.h"
#include "plugins/kit/error.h"

namespace keirin::cpu {

codegen::native::CodeCache& code_cache() {
  static auto* cache = new codegen::native::CodeCache;
  return *cache;
}

codegen::native::CpuTarget code_target(const Machine& machine, const krn_policy* policy) {
  codegen::native::CpuTarget target = machine.code;
  target.contract = !policy || policy->numerics != KRN_NUMERICS_STRICT;
  return target;
}

CpuBackend::CpuBackend(const Machine& machine, const krn_policy* policy, bool packed)
    : machine_(machine), code_(code_target(machine, policy)), packed_(packed),
      drops_nan_(policy && policy->numerics == KRN_NUMERICS_FAST) {}

bool CpuBackend::takes_anchor(const codegen::AnchorDesc& anchor, std::string& why_not) const {
  return vendor_takes(anchor, machine_.features & kBf16, why_not);
}

bool CpuBackend::takes_post_op(const codegen::AnchorDesc& anchor, const codegen::PostOp& post) const {
  if (!drops_nan_ && vendor_drops_nan(post)) return false;
  return vendor_takes_post_op(anchor, post);
}

std::vector<std::unique_ptr<codegen::Step>> CpuBackend::lower_kernels(std::span<const codegen::Kernel> kernels,
                                                                      const codegen::CompileContext& context, uint32_t& generated) {
  std::vector<codegen::native::KernelFunction> functions;
  try {
    functions = code_cache().get(kernels, code_, generated, codegen::text_sink(context, ";", ".ll"));
  } catch (const std::runtime_error& e) {
    throw kit::Error(KRN_STATUS_internal, std::string(e.what()) + "; the region stays eager");
  }
  std::vector<std::unique_ptr<codegen::Step>> steps;
  for (size_t i = 0; i < kernels.size(); ++i) steps.push_back(make_kernel_step(kernels[i], functions[i], machine_.info));
  return steps;
}

std::unique_ptr<codegen::Step> CpuBackend::lower_anchor(const codegen::AnchorDesc& anchor, const codegen::CompileContext& context) {
  codegen::AnchorDesc wanted = anchor;
  wanted.packed = packed_;
  return make_vendor_step(wanted, context);
}

void CpuBackend::save_code(std::span<const codegen::Kernel> kernels, std::vector<uint8_t>& out) const {
  code_cache().save(kernels, code_, out);
}

void CpuBackend::load_code(std::span<const uint8_t> bytes) {
  if (!code_cache().load(bytes)) throw kit::Error(KRN_STATUS_corrupt, "the code in this artifact is cut short; it is compiled again");
}

std::string CpuBackend::code_identity() const { return "cpu 1 " + code_.identity(); }

}  // namespace keirin::cpu
