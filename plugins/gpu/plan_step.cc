// SPDX-License-Identifier: Apache-2.0
#include "plugins/gpu/plan_step.h"

#include <exception>

#include "abi/plugin.h"
#include "plugins/codegen/kernel/rows.h"
#include "plugins/kit/error.h"

namespace keirin::gpu {
namespace {

constexpr size_t kMostTensors = 8;
constexpr int64_t kAlign = 256;  // of a plan's workspace

class PlanStep final : public codegen::Step {
 public:
  PlanStep(const std::string& what, std::span<const codegen::TensorDesc> tensors, const std::string& more,
           std::shared_ptr<const LibraryPlan> plan, Prologue before, std::unique_ptr<codegen::Step> after)
      : plan_(std::move(plan)), before_(std::move(before)), after_(std::move(after)), text_(what) {
    if (before_.step) plan_at_ = (before_.step->workspace_bytes() + kAlign - 1) / kAlign * kAlign;
    if (tensors.size() > kMostTensors) throw kit::Error(KRN_STATUS_internal, what + " of more tensors than a step can pass");
    for (const codegen::TensorDesc& t : tensors) at_.push_back({t.buffer, t.offset * codegen::dtype_bytes(t.dtype)});
    for (size_t i = 0; i < 2; ++i) {
      text_ += i == 0 ? " [" : "] * [";
      for (size_t d = 0; d < tensors[i].sizes.size(); ++d) text_ += (d ? "x" : "") + std::to_string(tensors[i].sizes[d]);
    }
    text_ += "] " + more + " " + plan_->name();
    if (after_) text_ += ", " + after_->describe();
  }

  krn_code run(const codegen::RunContext& context) const override {
    char* const own = workspace_bytes() > 0 ? static_cast<char*>(context.buffers[workspace_]) : nullptr;
    if (before_.step) {
      if (const krn_code code = before_.step->run(context); code != KRN_STATUS_ok) return code;
    }
    void* addresses[kMostTensors];
    for (size_t i = 0; i < at_.size(); ++i)
      addresses[i] = i < before_.at.size() ? own + before_.at[i] : static_cast<char*>(context.buffers[at_[i].buffer]) + at_[i].bytes;
    std::string why_not;
    void* workspace = plan_->workspace_bytes() > 0 ? own + plan_at_ : nullptr;
    krn_code code = KRN_STATUS_internal;
    try {
      code = plan_->run(reinterpret_cast<Stream>(context.run->stream.native), {addresses, at_.size()}, workspace, why_not);
    } catch (const std::exception& error) {  // a library's frontend may throw; a run may not
      why_not = error.what();
    }
    if (code != KRN_STATUS_ok) kit::set_error(context.err, code, text_ + ": " + why_not);
    return code != KRN_STATUS_ok || !after_ ? code : after_->run(context);
  }
  std::string describe() const override { return text_; }
  int64_t workspace_bytes() const override { return plan_at_ + plan_->workspace_bytes(); }
  void set_workspace(uint32_t buffer) override {
    workspace_ = buffer;
    if (before_.step) before_.step->set_workspace(buffer);
  }

 private:
  struct Place {
    uint32_t buffer;
    int64_t bytes;
  };
  std::shared_ptr<const LibraryPlan> plan_;
  Prologue before_;
  std::unique_ptr<codegen::Step> after_;
  std::vector<Place> at_;
  int64_t plan_at_ = 0;  // where the plan's own workspace begins, behind the prologue's
  uint32_t workspace_ = 0;
  std::string text_;
};

}  // namespace

std::unique_ptr<codegen::Step> make_plan_step(const std::string& what, std::span<const codegen::TensorDesc> tensors,
                                              const std::string& more, std::shared_ptr<const LibraryPlan> plan,
                                              Prologue before, std::unique_ptr<codegen::Step> after) {
  return std::make_unique<PlanStep>(what, tensors, more, std::move(plan), std::move(before), std::move(after));
}

}  // namespace keirin::gpu
