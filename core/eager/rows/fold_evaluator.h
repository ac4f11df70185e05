// SPDX-License-Identifier: Apache-2.0
//
// Constant folding through LibTorch. What was computed of the same weights for another graph of the model is not computed, and not
// held, a second time: at other sizes most of it is the same. Results join the table of constants that it was made with; the table and
// the services must outlive it. One object serves one run of the passes on one thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/services.h"
#include "core/base/sha256.h"
#include "core/passes/evaluator.h"

namespace keirin {

// What folding computed of one table of weights, as long as somebody holds it. Any thread.
class FoldedConstants {
 public:
  TensorRef find(const Hash& how) const;
  void add(const Hash& how, const TensorRef& tensor);

 private:
  mutable std::mutex mutex_;
  std::map<Hash, std::weak_ptr<Tensor>> known_;
};

class FoldEvaluator final : public Evaluator {
 public:
  // `known`: of all graphs whose constants begin with these ones; it outlives this.
  FoldEvaluator(std::vector<TensorRef>& constants, TensorServices& services, Device device, FoldedConstants* known)
      : constants_(constants), services_(services), device_(device), num_weights_(constants.size()), known_(*known) {}

  Result<std::vector<FoldedConstant>> evaluate(const Graph& graph) override;
  Result<std::vector<double>> read(uint32_t index) override;
  Result<FoldedConstant> store(const std::vector<double>& values, DType dtype, const Dims& sizes) override;
  Result<FoldedConstant> scale(uint32_t index, const Type& type, size_t axis, const std::vector<double>& factors) override;

  // Of what was computed here and not found.
  int64_t computed_bytes() const { return computed_bytes_; }

  // How each constant behind the weights came about. `by`: the graph of one output that `evaluate` was given of it; null: from numbers.
  struct Origin {
    Hash how;
    std::shared_ptr<const Graph> by;
  };
  const std::vector<Origin>& origins() const { return origins_; }
  // One more, that was computed so.
  FoldedConstant take(TensorRef tensor, Origin origin);

 private:
  Result<TensorRef> row_major(uint32_t index, DType dtype);
  template <class T>
  void multiply(const Tensor& from, Tensor& to, size_t axis, const std::vector<double>& factors);
  // Of this graph, which has one output, or of the constant that `words` speak of: what decides its elements.
  Hash how_computed(const Graph& graph) const;
  Hash how_computed(const std::string& words, uint32_t index, const std::vector<double>& numbers) const;
  std::string name_of(uint32_t index) const;
  // One that is known, or what `compute` returns, which then is.
  template <class Compute>
  Result<FoldedConstant> find_or(const Hash& how, Compute&& compute);

  std::vector<TensorRef>& constants_;
  TensorServices& services_;
  Device device_;
  const size_t num_weights_;
  FoldedConstants& known_;
  std::vector<Origin> origins_;
  int64_t computed_bytes_ = 0;
};

}  // namespace keirin
