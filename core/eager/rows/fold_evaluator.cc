// SPDX-License-Identifier: Apache-2.0
#include "core/eager/rows/fold_evaluator.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/eager/rows/graph_calls.h"
#include "core/ir/text.h"

namespace keirin {
namespace {

Type type_of(const Tensor& tensor) {
  return {tensor.dtype(), Dims(tensor.sizes(), tensor.sizes() + tensor.rank()), Dims(tensor.strides(), tensor.strides() + tensor.rank())};
}

}  // namespace

TensorRef FoldedConstants::find(const Hash& how) const {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(how);
  return found == known_.end() ? nullptr : found->second.lock();
}

void FoldedConstants::add(const Hash& how, const TensorRef& tensor) {
  const std::lock_guard lock(mutex_);
  std::erase_if(known_, [](const auto& each) { return each.second.expired(); });
  known_[how] = tensor;
}

std::string FoldEvaluator::name_of(uint32_t index) const {
  return index < num_weights_ ? std::to_string(index) : hex(origins_[index - num_weights_].how);
}

Hash FoldEvaluator::how_computed(const Graph& graph) const {
  std::string text = print(graph);
  for (const Value& value : graph.values)
    if (value.kind == ValueKind::kConstant) text += name_of(value.index) + "\n";
  return sha256(text.data(), text.size());
}

Hash FoldEvaluator::how_computed(const std::string& words, uint32_t index, const std::vector<double>& numbers) const {
  const std::string text = words + " " + name_of(index);
  Sha256 hash;
  hash.update(text.data(), text.size());
  hash.update(numbers.data(), numbers.size() * sizeof(double));
  return hash.finish();
}

template <class Compute>
Result<FoldedConstant> FoldEvaluator::find_or(const Hash& how, Compute&& compute) {
  if (TensorRef found = known_.find(how)) return take(std::move(found), {how, nullptr});
  KRN_TRY_LET(TensorRef computed, compute());
  computed_bytes_ += computed->storage_bytes();
  known_.add(how, computed);
  return take(std::move(computed), {how, nullptr});
}

Result<std::vector<FoldedConstant>> FoldEvaluator::evaluate(const Graph& graph) {
  // Each output by itself, as a graph: at other sizes some are the same and others are not.
  std::vector<Origin> origins;
  std::vector<TensorRef> results;
  Graph missing = graph;
  missing.outputs.clear();
  for (const Output& output : graph.outputs) {
    Graph alone = graph;
    alone.outputs = {output};
    alone.drop_dead();
    const Hash how = how_computed(alone);
    origins.push_back({how, std::make_shared<const Graph>(std::move(alone))});
    results.push_back(known_.find(how));
    if (!results.back()) missing.outputs.push_back(output);
  }
  if (!missing.outputs.empty()) {
    missing.drop_dead();
    KRN_TRY_LET(const auto replay, EagerGraph::make(missing, nullptr, constants_, {device_, std::nullopt}));
    KRN_TRY_LET(std::vector<TensorRef> computed, replay->run({}));
    auto next = computed.begin();
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i]) continue;
      results[i] = std::move(*next++);
      computed_bytes_ += results[i]->storage_bytes();
      known_.add(origins[i].how, results[i]);
    }
  }
  std::vector<FoldedConstant> folded;
  for (size_t i = 0; i < results.size(); ++i) folded.push_back(take(std::move(results[i]), std::move(origins[i])));
  return folded;
}

Result<std::vector<double>> FoldEvaluator::read(uint32_t index) {
  KRN_TRY_LET(const TensorRef dense, row_major(index, DType::k_f64));
  const auto* data = static_cast<const double*>(dense->data());
  return std::vector<double>(data, data + type_of(*dense).num_elements());
}

Result<FoldedConstant> FoldEvaluator::store(const std::vector<double>& values, DType dtype, const Dims& sizes) {
  std::string words = "store " + std::string(dtype_name(dtype));
  for (const int64_t size : sizes) words += " " + std::to_string(size);
  Sha256 hash;
  hash.update(words.data(), words.size());
  hash.update(values.data(), values.size() * sizeof(double));
  return find_or(hash.finish(), [&]() -> Result<TensorRef> {
    KRN_TRY_LET(TensorRef tensor, services_.allocate({DType::k_f64, sizes.vec(), {}, {}}));
    std::copy(values.begin(), values.end(), static_cast<double*>(tensor->data()));
    KRN_TRY_LET(tensor, services_.cast(tensor, dtype));
    return services_.to_device(tensor, device_);
  });
}

Result<FoldedConstant> FoldEvaluator::scale(uint32_t index, const Type& type, size_t axis, const std::vector<double>& factors) {
  if (type.dtype != DType::k_f32 && type.dtype != DType::k_f64) return Status(Code::k_unsupported, "only f32 and f64 weights are scaled");
  return find_or(how_computed("scale along " + std::to_string(axis), index, factors), [&]() -> Result<TensorRef> {
    KRN_TRY_LET(const TensorRef from, row_major(index, type.dtype));
    KRN_TRY_LET(TensorRef to, services_.allocate({type.dtype, type.sizes.vec(), {}, {}}));
    if (type.dtype == DType::k_f32) multiply<float>(*from, *to, axis, factors);
    else multiply<double>(*from, *to, axis, factors);
    return services_.to_device(to, device_);
  });
}

// On the host; the constant itself where it is row-major there already.
Result<TensorRef> FoldEvaluator::row_major(uint32_t index, DType dtype) {
  KRN_TRY_LET(TensorRef host, services_.to_device(constants_[index], {}));
  const Type type = type_of(*host);
  if (type.dtype == dtype && type.strides == contiguous_strides(type.sizes)) return host;
  KRN_TRY_LET(TensorRef dense, services_.allocate({dtype, type.sizes.vec(), {}, {}}));
  KRN_TRY(services_.copy(dense, host));
  return dense;
}

template <class T>
void FoldEvaluator::multiply(const Tensor& from, Tensor& to, size_t axis, const std::vector<double>& factors) {
  const int64_t inner = std::accumulate(from.sizes() + axis + 1, from.sizes() + from.rank(), int64_t{1}, std::multiplies<>());
  const auto channels = static_cast<int64_t>(factors.size());
  const auto* x = static_cast<const T*>(from.data());
  auto* y = static_cast<T*>(to.data());
  services_.parallel_for(type_of(from).num_elements() / std::max<int64_t>(inner, 1),
                         std::max<int64_t>(1, 65536 / std::max<int64_t>(inner, 1)), [=, &factors](int64_t begin, int64_t end) {
                           for (int64_t row = begin; row < end; ++row) {
                             const double factor = factors[static_cast<size_t>(row % channels)];
                             for (int64_t i = row * inner; i < (row + 1) * inner; ++i) y[i] = static_cast<T>(x[i] * factor);
                           }
                         });
}

FoldedConstant FoldEvaluator::take(TensorRef tensor, Origin origin) {
  origins_.push_back(std::move(origin));
  FoldedConstant constant{static_cast<uint32_t>(constants_.size()), type_of(*tensor)};
  constants_.push_back(std::move(tensor));
  return constant;
}

}  // namespace keirin
