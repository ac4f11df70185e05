// SPDX-License-Identifier: Apache-2.0
//
// The random numbers of a training step, drawn by LibTorch's own operators from its own generator (python/keirin/_draws.py).
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <vector>

#include "core/eager/rows/replay_in_place.h"

namespace keirin::python {

// What is drawn at each step, recorded where the device has recordings: one launch instead of one for each draw, of the same numbers. It
// lies where it lay at the step before, unless somebody still has that.
class RepeatedDraws {
 public:
  // `draw`: () to a list of new tensors of `device`, of the same sizes and strides each time.
  RepeatedDraws(pybind11::function draw, at::Device device);
  // On the current stream; any thread, without the interpreter's lock. Raises what `draw` raises.
  std::vector<at::Tensor> draw();

 private:
  pybind11::function draw_;
  std::unique_ptr<TensorServices> services_;
  std::unique_ptr<ReplayInPlace> replay_;
};

}  // namespace keirin::python
