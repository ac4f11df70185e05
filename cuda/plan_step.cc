// SPDX-License-Identifier: Apache-2.0
#include "cuda/plan_step.h"

#include <exception>

#include "abi/plugin.h"
#include "plugins/codegen/rows.h"
#include "plugins/kit/error.h"

namespace keirin::cuda {
namespace {

constexpr size_t kMostTensors = 8;

class PlanStep final : public codegen::Step {
 public:
  PlanStep(const std::string& what, std::span<const codegen::TensorDesc> tensors, const std::string& more, std::shared_ptr<const LibraryPlan> plan)
      : plan_(std::move(plan)), text_(what) {
    if (tensors.size() > kMostTensors) throw kit::Error(KRN_STATUS_internal, what + " of more tensors than a step can pass");
    for (const codegen::TensorDesc& t : tensors) at_.push_back({t.buffer, t.offset * codegen::dtype_bytes(t.dtype)});
    for (size_t i = 0; i < 2; ++i) {
      text_ += i == 0 ? " [" : "] * [";
      for (size_t d = 0; d < tensors[i].sizes.size(); ++d) text_ += (d ? "x" : "") + std::to_string(tensors[i].sizes[d]);
    }
    text_ += "] " + more + " " + plan_->name();
  }

  krn_code run(const codegen::RunContext& context) const override {
    void* addresses[kMostTensors];
    for (size_t i = 0; i < at_.size(); ++i) addresses[i] = static_cast<char*>(context.buffers[at_[i].buffer]) + at_[i].bytes;
    std::string why_not;
    void* workspace = plan_->workspace_bytes() > 0 ? context.buffers[workspace_] : nullptr;
    krn_code code = KRN_STATUS_internal;
    try {
      code = plan_->run(reinterpret_cast<CUstream>(context.run->stream.native), {addresses, at_.size()}, workspace, why_not);
    } catch (const std::exception& error) {  // the frontend may throw; a run may not
      why_not = error.what();
    }
    if (code != KRN_STATUS_ok) kit::set_error(context.err, code, text_ + ": " + why_not);
    return code;
  }
  std::string describe() const override { return text_; }
  int64_t workspace_bytes() const override { return plan_->workspace_bytes(); }
  void set_workspace(uint32_t buffer) override { workspace_ = buffer; }

 private:
  struct Place {
    uint32_t buffer;
    int64_t bytes;
  };
  std::shared_ptr<const LibraryPlan> plan_;
  std::vector<Place> at_;
  uint32_t workspace_ = 0;
  std::string text_;
};

}  // namespace

std::unique_ptr<codegen::Step> make_plan_step(const std::string& what, std::span<const codegen::TensorDesc> tensors, const std::string& more,
                                              std::shared_ptr<const LibraryPlan> plan) {
  return std::make_unique<PlanStep>(what, tensors, more, std::move(plan));
}

}  // namespace keirin::cuda
