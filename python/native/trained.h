// SPDX-License-Identifier: Apache-2.0
//
// A training step as one node of autograd's: a compiled forward, what it keeps, and the compiled backward that was made with it. Only for
// steps whose outputs are new tensors (python/keirin/_training.py says which); others go through AOTAutograd's own wrappers.
#pragma once

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/native/compiled.h"

namespace keirin::python {

// A forward or backward over tensors alone. `slow`: the same in Python, for calls that the session knows nothing of.
struct HalfCall {
  std::shared_ptr<Model> model;
  std::vector<Output> outputs;  // kObject: nothing, an undefined tensor
  pybind11::object slow;

  // With or without the interpreter's lock; it is released while the session works. Throws what Python or LibTorch raises.
  torch::autograd::variable_list call(const torch::autograd::variable_list& inputs) const;
};

struct TrainedLayout {
  size_t num_arguments = 0;                         // of the caller's; what is drawn comes behind them
  struct Written {
    size_t argument = 0, result = 0;                // the argument, and the forward's result that it holds afterwards
    bool is_counted = true;                         // whether eager's operator tells its version; a batch norm does not
  };
  std::vector<Written> written;
  std::vector<size_t> returned;                     // the forward's results that the caller gets, in order
  std::vector<bool> differentiable;                 // of `returned`
  std::vector<size_t> kept;                         // the forward's results that the backward takes
  // What the backward takes, in order: of `kept` or a gradient, of `returned`; and the gradient's memory format.
  struct Operand {
    bool is_gradient = false;
    size_t index = 0;
    at::MemoryFormat format = at::MemoryFormat::Contiguous;
  };
  std::vector<Operand> operands;
  std::vector<std::vector<size_t>> sources;         // of each result of the backward: the gradients, of `returned`, that it depends on
};

// Owned by the callable and by each node of a graph that it made.
class Trained : public torch::CustomClassHolder {
 public:
  // `drawn`: what is behind the arguments, or None; `again`: (arguments, gradients) to gradients that can be differentiated again.
  Trained(HalfCall forward, HalfCall backward, TrainedLayout layout, pybind11::object drawn, pybind11::object again)
      : forward(std::move(forward)),
        backward(std::move(backward)),
        layout(std::move(layout)),
        drawn(std::move(drawn)),
        again(std::move(again)) {}
  ~Trained() override;

  HalfCall forward, backward;
  TrainedLayout layout;
  pybind11::object drawn, again;
};

// A function of the caller's tensors that returns a tuple. A new reference, under the interpreter's lock; null with a Python error.
PyObject* callable_of(c10::intrusive_ptr<Trained> trained);

}  // namespace keirin::python
