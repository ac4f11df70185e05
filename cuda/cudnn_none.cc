// SPDX-License-Identifier: Apache-2.0
//
// cudnn.h where the headers were missing at build time: every question is answered with that reason.
#include "cuda/cudnn.h"
#include "plugins/kit/error.h"

namespace keirin::cuda {

const std::string& cudnn_missing() {
  static const std::string why = "built without cuDNN headers";
  return why;
}

bool cudnn_supports(const ConvProblem&, std::string& why_not) {
  why_not = cudnn_missing();
  return false;
}

bool cudnn_supports(const HeadsProblem&, std::string& why_not) {
  why_not = cudnn_missing();
  return false;
}

void cudnn_prepare(std::span<const ConvProblem>, std::span<const HeadsProblem>) {}

std::shared_ptr<const LibraryPlan> cudnn_plan(const HeadsProblem&) { throw kit::Error(KRN_STATUS_unsupported, cudnn_missing()); }

std::shared_ptr<const LibraryPlan> cudnn_plan(const ConvProblem&) { throw kit::Error(KRN_STATUS_unsupported, cudnn_missing()); }

}  // namespace keirin::cuda
