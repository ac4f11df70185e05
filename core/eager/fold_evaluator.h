// SPDX-License-Identifier: Apache-2.0
//
// Constant folding through LibTorch. Results join the table of constants that it was made with; the table and the services must
// outlive it. One object serves one run of the passes on one thread.
#pragma once

#include <vector>

#include "core/base/services.h"
#include "core/passes/evaluator.h"

namespace keirin {

class FoldEvaluator final : public Evaluator {
 public:
  FoldEvaluator(std::vector<TensorRef>& constants, TensorServices& services, Device device)
      : constants_(constants), services_(services), device_(device) {}

  Result<std::vector<FoldedConstant>> evaluate(const Graph& graph) override;
  Result<std::vector<double>> read(uint32_t index) override;

 private:
  std::vector<TensorRef>& constants_;
  TensorServices& services_;
  Device device_;
};

}  // namespace keirin
