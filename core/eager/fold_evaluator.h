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
  Result<FoldedConstant> store(const std::vector<double>& values, DType dtype, const Dims& sizes) override;
  Result<FoldedConstant> scale(uint32_t index, const Type& type, size_t axis, const std::vector<double>& factors) override;

 private:
  Result<TensorRef> row_major(uint32_t index, DType dtype);
  template <class T>
  void multiply(const Tensor& from, Tensor& to, size_t axis, const std::vector<double>& factors);
  FoldedConstant add(TensorRef tensor);

  std::vector<TensorRef>& constants_;
  TensorServices& services_;
  Device device_;
};

}  // namespace keirin
