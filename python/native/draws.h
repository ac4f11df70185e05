// SPDX-License-Identifier: Apache-2.0
//
// The masks of a training step's dropouts, drawn by LibTorch's own operator from its own generator (python/keirin/_draws.py).
#pragma once

#include <ATen/ATen.h>

#include <tuple>
#include <vector>

namespace keirin::python {

// What each step draws, one after the other, without the interpreter between two of them: of the sizes, in the strides and with the
// numbers that LibTorch's native_dropout gives a tensor of that dtype. The share that it drops comes last.
class DropoutMasks {
 public:
  using Draw = std::tuple<std::vector<int64_t>, std::vector<int64_t>, at::ScalarType, double>;
  DropoutMasks(std::vector<Draw> draws, at::Device device) : draws_(std::move(draws)), device_(device) {}
  // Bools: which elements stay. On the current stream; any thread.
  std::vector<at::Tensor> draw() const;

 private:
  std::vector<Draw> draws_;
  at::Device device_;
};

}  // namespace keirin::python
