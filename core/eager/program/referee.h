// SPDX-License-Identifier: Apache-2.0
//
// The runner behind EagerProgram::referee: the file's operators on values that are f64 wherever the file says a narrower float (c128
// for a narrower complex). Aliases are what eager's are: where eager's conversion between two dtypes makes a copy, so does this,
// although both are f64 here. Private to core/eager.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "core/eager/program/frame.h"
#include "core/eager/program/program.h"

namespace keirin {

// In f64 or c128, the tensor itself if it is neither float nor complex or is so already. May be a view of nothing: a conversion copies.
at::Tensor wide(const at::Tensor& tensor);

// Copies in the wide dtype with the sizes, strides and shared memory of the originals, whatever their storages.
class WideCopies {
 public:
  // Every tensor is named before the first copy is asked for. Throws where memory is shared under different dtypes.
  void add(const at::Tensor& tensor);
  at::Tensor of(const at::Tensor& tensor);

 private:
  struct Block {           // memory that tensors share, or one tensor's own
    uintptr_t begin, end;
    at::Tensor like;       // one of them
    at::Tensor elements;   // wide, as one axis; undefined until it is asked for
  };
  std::vector<Block> blocks_;  // disjoint
};

class RefereeRunner final : public OperatorRunner {
 public:
  RefereeRunner(Device device, Roundings roundings) : device_(device), roundings_(roundings) {}
  void run(const OperatorSite& site, torch::jit::Stack& stack) override;
  // Operators that ran in the file's dtype, each once.
  std::vector<std::string> own_dtype() const { return {own_dtype_.begin(), own_dtype_.end()}; }

 private:
  void run_wide(const OperatorSite& site, torch::jit::Stack& stack, const std::vector<at::Tensor>& operands);
  bool leaves_generators(const std::function<void()>& call);
  void run_own(const OperatorSite& site, torch::jit::Stack& stack, const std::vector<at::Tensor>& operands);
  void settle_results(const OperatorSite& site, torch::jit::Stack& stack, const std::vector<at::Tensor>& operands);
  void round_results(const OperatorSite& site, torch::jit::Stack& stack, const std::vector<at::Tensor>& untouched);

  Device device_;
  const Roundings roundings_;
  uint32_t num_rounded_ = 0;
  std::set<std::string> own_dtype_;
  std::vector<at::Storage> cut_off_;  // results that eager has as views of an operand, and this has not
};

}  // namespace keirin
