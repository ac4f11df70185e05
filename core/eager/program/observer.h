// SPDX-License-Identifier: Apache-2.0
//
// The runner behind EagerProgram::observe: calls every operator as it is and looks at the storages of what went in and came out. A
// weight or input is copied before the first write to it, so that a run leaves no mark. Private to core/eager.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <set>
#include <vector>

#include "core/eager/program/frame.h"
#include "core/eager/program/observed.h"
#include "core/eager/program/whole_products.h"

namespace keirin {

// The storage of a tensor as one axis of its elements. Tensors that were made by address have storages of their own although they
// may lie in one memory: what shares memory is told by these, not by storages.
at::Tensor storage_elements(const at::Tensor& tensor);

class Observer final : public OperatorRunner {
 public:
  // `tf32`: what LibTorch's settings let its libraries round; looked at where they let them.
  Observer(ObservedRun& seen, const Tf32Settings& tf32) : seen_(seen), products_(tf32, seen.whole_products) {}
  void add_weight(const at::Tensor& tensor, size_t position) { source_of(tensor).weights.push_back(position); }
  void add_input(const at::Tensor& tensor, size_t position) { source_of(tensor).inputs.push_back(position); }
  void note_write(const at::Tensor& tensor);
  void run(const OperatorSite& site, torch::jit::Stack& stack) override;
  // Sources as they were before the run: also for one that failed.
  void put_back() const;
  // Puts them back, and notes which were written.
  void finish();
  // Whether an operator was called that may draw random numbers.
  bool may_draw() const { return may_draw_; }

 private:
  using Storage = const c10::StorageImpl*;
  static Storage storage_of(const at::Tensor& tensor) { return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr; }
  void note_writes(const OperatorSite& site, const torch::jit::Stack& stack, const std::vector<at::Tensor>& operands);

  struct Source {
    at::Tensor all;      // a storage, as one axis
    at::Tensor content;  // a copy from before the first write; undefined: not written
    std::vector<size_t> weights, inputs;  // that lie in it
  };
  Source& source_of(const at::Tensor& tensor);

  ObservedRun& seen_;
  WholeProducts products_;
  std::vector<Source> sources_;
  std::map<Storage, size_t> by_storage_;
  std::set<Storage> written_;
  bool may_draw_ = false;
};

// The tensors on a stack in order, lists as their elements; numbers that stand as 0-d tensors and absent ones are left out. `visit`
// may replace what it is given.
void each_tensor(torch::jit::Stack& stack, const std::function<void(at::Tensor&)>& visit);

}  // namespace keirin
