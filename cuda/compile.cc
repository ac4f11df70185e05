// SPDX-License-Identifier: Apache-2.0
//
// The backend: what the code generator plans becomes launchable here.
#include "cuda/backend.h"
#include "cuda/launch.h"
#include "cuda/text_step.h"
#include "plugins/kit/error.h"

namespace keirin::cuda {

CudaBackend::CudaBackend(const Gpu& gpu, const Context* context, const krn_policy* policy)
    : gpu_(gpu), context_(context), numerics_(policy ? policy->numerics : KRN_NUMERICS_DEFAULT),
      policy_flags_(policy ? policy->flags : 0), code_(code_target(gpu, policy)) {}

bool CudaBackend::supports(uint32_t op, uint8_t dtype, std::string& why_not) const { return supports_row(op, dtype, why_not); }

bool CudaBackend::takes_anchor(const codegen::AnchorDesc& anchor, std::string& why_not) const {
  const Current current(context_ ? context_->handle() : nullptr);
  return vendor_takes(anchor, gpu_, numerics_, context_ != nullptr, why_not);
}

bool CudaBackend::takes_post_op(const codegen::AnchorDesc& anchor, const codegen::PostOp& post) const {
  const Current current(context_ ? context_->handle() : nullptr);
  return vendor_takes_post_op(anchor, post, gpu_, numerics_, context_ != nullptr);
}

std::vector<CodeStore::Wanted> CudaBackend::wanted(std::span<const codegen::Kernel> kernels) const {
  std::vector<CodeStore::Wanted> out;
  for (const codegen::Kernel& k : kernels) {
    const codegen::Schedule schedule = codegen::choose_schedule(k, gpu_.facts);
    out.push_back({&k, schedule, code_name(k, schedule, code_)});
  }
  return out;
}

std::vector<std::unique_ptr<codegen::Step>> CudaBackend::lower_kernels(std::span<const codegen::Kernel> kernels,
                                                                       const codegen::CompileContext& context, uint32_t& generated) {
  std::function<void(const std::string&, const std::string&)> dump;
  if (context.options && context.options->dump) {
    dump = [sink = context.options->dump](const std::string& name, const std::string& text) {
      const std::string framed = "// " + name + ".cu\n" + text;
      sink->write(sink->ctx, framed.data(), framed.size());
    };
  }
  const std::vector<CodeStore::Wanted> all = wanted(kernels);
  generated += code_store().compile(all, code_, dump);
  const Current current(context_ ? context_->handle() : nullptr);
  std::vector<std::unique_ptr<codegen::Step>> steps;
  for (size_t i = 0; i < kernels.size(); ++i) {
    const Functions functions = context_ ? code_store().load(all[i]) : Functions{};
    steps.push_back(make_kernel_step(kernels[i], all[i].schedule, functions));
  }
  return steps;
}

void CudaBackend::prepare_anchors(std::span<const codegen::AnchorDesc* const> anchors) {
  const Current current(context_ ? context_->handle() : nullptr);
  if (context_) prepare_vendor(anchors, numerics_);
}

std::unique_ptr<codegen::Step> CudaBackend::lower_anchor(const codegen::AnchorDesc& anchor, const codegen::CompileContext&) {
  const Current current(context_ ? context_->handle() : nullptr);
  krn_policy policy{};
  policy.numerics = numerics_;
  policy.flags = policy_flags_;
  return make_vendor_step(anchor, gpu_, code_, &policy, context_ != nullptr);
}

bool CudaBackend::joins(std::span<const codegen::AnchorDesc* const> those, const codegen::AnchorDesc& next) const {
  return may_join(those, next);
}

std::unique_ptr<codegen::Step> CudaBackend::lower_joined(std::span<const codegen::AnchorDesc* const> anchors, const codegen::CompileContext&) {
  const Current current(context_ ? context_->handle() : nullptr);
  std::string why_not;
  const auto kernel = joined_kernel(anchors, gpu_, why_not);
  if (!kernel) throw kit::Error(KRN_STATUS_unsupported, why_not);
  return make_text_step(*kernel, code_, context_ != nullptr);
}

std::unique_ptr<codegen::Step> CudaBackend::lower_csr(const codegen::Csr& csr, const codegen::CompileContext&) {
  const Current current(context_ ? context_->handle() : nullptr);
  return make_csr_step(csr, gpu_, code_, context_ != nullptr);
}

void CudaBackend::save_code(std::span<const codegen::Kernel> kernels, std::vector<uint8_t>& out) const {
  std::vector<std::string> names;
  for (const CodeStore::Wanted& w : wanted(kernels)) {
    names.push_back(w.name);
    if (w.kernel->has_csr) names.push_back(csr_code_name(code_));
  }
  for (const char* prefix : {kChoicePrefix, kTextPrefix}) {
    const std::vector<std::string> more = code_store().names_from(prefix);
    names.insert(names.end(), more.begin(), more.end());
  }
  code_store().save(names, out);
}

void CudaBackend::load_code(std::span<const uint8_t> bytes) { code_store().take(bytes); }

std::string CudaBackend::code_identity() const { return "cuda 1 " + code_.identity(); }

}  // namespace keirin::cuda
