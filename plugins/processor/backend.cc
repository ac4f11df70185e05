// SPDX-License-Identifier: Apache-2.0
//
// What the code generator plans becomes launchable here.
#include "plugins/processor/backend.h"

#include <stdexcept>

#include "plugins/kit/error.h"
#include "plugins/processor/launch.h"

namespace keirin::processor {

codegen::native::CodeCache& code_cache() {
  static auto* cache = new codegen::native::CodeCache;
  return *cache;
}

codegen::native::CpuTarget code_target(const Machine& machine, const krn_policy* policy) {
  codegen::native::CpuTarget target = machine.code;
  target.contract = !policy || policy->numerics != KRN_NUMERICS_STRICT;
  return target;
}

Backend::Backend(const Machine& machine, const krn_policy* policy, std::unique_ptr<const Library> library)
    : machine_(machine), code_(code_target(machine, policy)), library_(std::move(library)) {}

bool Backend::takes_anchor(const codegen::AnchorDesc& anchor, std::string& why_not) const {
  if (library_) return library_->takes(anchor, why_not);
  why_not = "this plugin has no library for it";
  return false;
}

bool Backend::takes_post_op(const codegen::AnchorDesc& anchor, const codegen::PostOp& post) const {
  return library_ && library_->takes_post_op(anchor, post);
}

std::vector<std::unique_ptr<codegen::Step>> Backend::lower_kernels(std::span<const codegen::Together> of_steps,
                                                                   const codegen::CompileContext& context, uint32_t& generated) {
  const codegen::TextSink sink = codegen::text_sink(context, ";", ".ll");
  std::vector<std::unique_ptr<codegen::Step>> steps;
  try {
    for (const codegen::Kernel* kernel : codegen::all_of(of_steps)) {
      const auto code = generates_ ? code_cache().get(*kernel, code_, generated, sink) : code_cache().known(*kernel, code_);
      if (!code) throw codegen::not_compiled(kernel->name);
      steps.push_back(make_kernel_step(*kernel, code, machine_.info));
    }
  } catch (const kit::Error&) {
    throw;
  } catch (const std::runtime_error& e) {  // the compiler's
    throw kit::Error(KRN_STATUS_internal, std::string(e.what()) + "; the region stays eager");
  }
  return steps;
}

std::unique_ptr<codegen::Step> Backend::lower_anchor(const codegen::ChosenAnchor& anchor, const codegen::CompileContext& context) {
  if (!library_) throw kit::Error(KRN_STATUS_internal, "an anchor without a library; leave the node to eager");
  return library_->make_step(*anchor.desc, context);
}

void Backend::save_code(std::span<const codegen::Together> steps, std::vector<uint8_t>& out) const {
  code_cache().save(codegen::all_of(steps), code_, out);
}

void Backend::load_code(std::span<const uint8_t> bytes) {
  if (!code_cache().load(bytes)) throw kit::Error(KRN_STATUS_corrupt, "the code in this artifact is cut short; it is compiled again");
}

std::string Backend::code_identity() const { return "cpu 1 " + code_.identity(); }

}  // namespace keirin::processor
