// SPDX-License-Identifier: Apache-2.0
//
// cudnn.h where the headers were missing at build time: every question is answered with that reason.
#include "cuda/cudnn.h"
#include "plugins/kit/error.h"

namespace keirin::cuda {
namespace {

constexpr const char* kMissing = "built without cuDNN headers";

class NoCudnn final : public gpu::PlanLibrary {
 public:
  const char* name() const override { return "cudnn"; }
  bool supports(const gpu::ConvProblem&, std::string& why_not) const override { return why_not = kMissing, false; }
  bool supports(const gpu::HeadsProblem&, std::string& why_not) const override { return why_not = kMissing, false; }
  void prepare(std::span<const gpu::ConvProblem>, std::span<const gpu::HeadsProblem>) const override {}
  std::shared_ptr<const gpu::LibraryPlan> plan(const gpu::ConvProblem&) const override {
    throw kit::Error(KRN_STATUS_unsupported, kMissing);
  }
  std::shared_ptr<const gpu::LibraryPlan> plan(const gpu::HeadsProblem&) const override {
    throw kit::Error(KRN_STATUS_unsupported, kMissing);
  }
};

}  // namespace

const std::string& cudnn_missing() {
  static const std::string why = kMissing;
  return why;
}

const gpu::PlanLibrary& cudnn() {
  static const NoCudnn none;
  return none;
}

}  // namespace keirin::cuda
