// SPDX-License-Identifier: Apache-2.0
#include "core/eager/fold_evaluator.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/eager/graph_calls.h"

namespace keirin {
namespace {

Type type_of(const Tensor& tensor) {
  return {tensor.dtype(), Dims(tensor.sizes(), tensor.sizes() + tensor.rank()), Dims(tensor.strides(), tensor.strides() + tensor.rank())};
}

}  // namespace

Result<std::vector<FoldedConstant>> FoldEvaluator::evaluate(const Graph& graph) {
  KRN_TRY_LET(const auto replay, GraphReplay::make(graph, nullptr, constants_, {device_, std::nullopt}));
  KRN_TRY_LET(std::vector<TensorRef> results, replay->run({}));
  std::vector<FoldedConstant> folded;
  for (TensorRef& result : results) folded.push_back(add(std::move(result)));
  return folded;
}

Result<std::vector<double>> FoldEvaluator::read(uint32_t index) {
  KRN_TRY_LET(const TensorRef dense, row_major(index, DType::k_f64));
  const auto* data = static_cast<const double*>(dense->data());
  return std::vector<double>(data, data + type_of(*dense).num_elements());
}

Result<FoldedConstant> FoldEvaluator::store(const std::vector<double>& values, DType dtype, const Dims& sizes) {
  KRN_TRY_LET(TensorRef tensor, services_.allocate({DType::k_f64, sizes, {}, {}}));
  std::copy(values.begin(), values.end(), static_cast<double*>(tensor->data()));
  KRN_TRY_LET(tensor, services_.cast(tensor, dtype));
  KRN_TRY_LET(tensor, services_.to_device(tensor, device_));
  return add(std::move(tensor));
}

Result<FoldedConstant> FoldEvaluator::scale(uint32_t index, const Type& type, size_t axis, const std::vector<double>& factors) {
  KRN_TRY_LET(const TensorRef from, row_major(index, type.dtype));
  KRN_TRY_LET(TensorRef to, services_.allocate({type.dtype, type.sizes, {}, {}}));
  if (type.dtype == DType::k_f32) multiply<float>(*from, *to, axis, factors);
  else if (type.dtype == DType::k_f64) multiply<double>(*from, *to, axis, factors);
  else return Status(Code::k_unsupported, "only f32 and f64 weights are scaled");
  KRN_TRY_LET(to, services_.to_device(to, device_));
  return add(std::move(to));
}

// On the host; the constant itself where it is row-major there already.
Result<TensorRef> FoldEvaluator::row_major(uint32_t index, DType dtype) {
  KRN_TRY_LET(TensorRef host, services_.to_device(constants_[index], {}));
  const Type type = type_of(*host);
  if (type.dtype == dtype && type.strides == contiguous_strides(type.sizes)) return host;
  KRN_TRY_LET(TensorRef dense, services_.allocate({dtype, type.sizes, {}, {}}));
  KRN_TRY(services_.copy(dense, host));
  return dense;
}

template <class T>
void FoldEvaluator::multiply(const Tensor& from, Tensor& to, size_t axis, const std::vector<double>& factors) {
  const int64_t inner = std::accumulate(from.sizes() + axis + 1, from.sizes() + from.rank(), int64_t{1}, std::multiplies<>());
  const auto channels = static_cast<int64_t>(factors.size());
  const auto* x = static_cast<const T*>(from.data());
  auto* y = static_cast<T*>(to.data());
  services_.parallel_for(type_of(from).num_elements() / std::max<int64_t>(inner, 1), std::max<int64_t>(1, 65536 / std::max<int64_t>(inner, 1)),
                         [=, &factors](int64_t begin, int64_t end) {
                           for (int64_t row = begin; row < end; ++row) {
                             const double factor = factors[static_cast<size_t>(row % channels)];
                             for (int64_t i = row * inner; i < (row + 1) * inner; ++i) y[i] = static_cast<T>(x[i] * factor);
                           }
                         });
}

FoldedConstant FoldEvaluator::add(TensorRef tensor) {
  FoldedConstant constant{static_cast<uint32_t>(constants_.size()), type_of(*tensor)};
  constants_.push_back(std::move(tensor));
  return constant;
}

}  // namespace keirin
