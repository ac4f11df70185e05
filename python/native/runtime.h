// SPDX-License-Identifier: Apache-2.0
//
// What the Python package holds of the core: options by keyword, one Runtime for each set of them, and a model over one session.
// Tensors cross as at::Tensor, by LibTorch's own Python binding: the core shares LibTorch's C++ ABI anyway, and only the tensor itself
// carries what DLPack leaves out (its storage, so that aliases stay aliases; its version; its conjugate bit).
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/api/raise.h"
#include "core/api/session.h"

namespace keirin::python {

// A row's name and the words of its value: one, or those of a list.
using OptionWords = std::vector<std::pair<std::string, std::vector<std::string>>>;
// invalid_input, thrown, for a name or a word that core/api/options.def does not know.
Options options_of(const OptionWords& words);

// One for each set of options, for the rest of the process: plugins are never unloaded. Any thread.
Runtime& runtime_of(const Options& options);

// Calls and a decision exclude each other where the model writes its own weights; else any number of threads may use it at once.
class Model {
 public:
  explicit Model(std::unique_ptr<Session> session) : session_(std::move(session)) {}
  Session& session() { return *session_; }

  std::vector<at::Tensor> call(const std::vector<at::Tensor>& inputs);
  // With copies of the inputs: the caller may write theirs meanwhile.
  ModelReport compile(const std::vector<at::Tensor>& inputs);
  Session::Effects effects(const std::vector<at::Tensor>& inputs);
  bool is_decided(const std::vector<at::Tensor>& inputs);
  void meet(const std::vector<at::Tensor>& inputs);  // Session::meet
  // From now on the model is known to write its weights.
  void set_exclusive() { exclusive_ = true; }
  std::unique_lock<std::mutex> turn() { return exclusive_ ? std::unique_lock(mutex_) : std::unique_lock<std::mutex>(); }

 private:
  std::unique_ptr<Session> session_;
  std::mutex mutex_;
  bool exclusive_ = false;  // set before the first call
};

std::vector<TensorRef> refs_of(const std::vector<at::Tensor>& tensors);

}  // namespace keirin::python
