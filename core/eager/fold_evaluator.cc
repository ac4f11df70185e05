// SPDX-License-Identifier: Apache-2.0
#include "core/eager/fold_evaluator.h"

#include "core/eager/graph_calls.h"

namespace keirin {

Result<std::vector<FoldedConstant>> FoldEvaluator::evaluate(const Graph& graph) {
  KRN_TRY_LET(const std::vector<TensorRef> results, keirin::evaluate(graph, nullptr, {}, constants_, {device_, std::nullopt}));
  std::vector<FoldedConstant> folded;
  std::vector<TensorRef> own;
  for (const TensorRef& result : results) {
    // A view of a weight would keep strides that the graph does not state: own, as it is laid out.
    KRN_TRY_LET(TensorRef copy, services_.clone(result));
    FoldedConstant constant{static_cast<uint32_t>(constants_.size() + folded.size()), {}};
    constant.type.dtype = copy->dtype();
    constant.type.sizes.assign(copy->sizes(), copy->sizes() + copy->rank());
    constant.type.strides.assign(copy->strides(), copy->strides() + copy->rank());
    folded.push_back(std::move(constant));
    own.push_back(std::move(copy));
  }
  constants_.insert(constants_.end(), own.begin(), own.end());
  return folded;
}

Result<std::vector<double>> FoldEvaluator::read(uint32_t index) {
  KRN_TRY_LET(const TensorRef host, services_.to_device(constants_[index], {}));
  const TensorSpec spec{DType::k_f64, {host->sizes(), host->sizes() + host->rank()}, {}, {}};
  KRN_TRY_LET(const TensorRef dense, services_.allocate(spec));
  KRN_TRY(services_.copy(dense, host));
  int64_t n = 1;
  for (const int64_t size : spec.sizes) n *= size;
  const auto* data = static_cast<const double*>(dense->data());
  return std::vector<double>(data, data + n);
}

}  // namespace keirin
