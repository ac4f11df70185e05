// SPDX-License-Identifier: Apache-2.0
//
// What stands in a graph's place once its plan is there: one C function over the flat arguments that the caller's graph takes, weights
// among them. It looks at what a plan rests on (that each weight is the tensor it was, at the same address, unwritten), calls the
// session without the interpreter's lock, and hands everything else to `slow`, a Python function of the same arguments.
#pragma once

#include <Python.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "python/native/runtime.h"

namespace keirin::python {

// How an argument reaches the program.
struct Role {
  // kFloat: a number too, in a tensor of one f64, as Dynamo hands on numbers that may vary.
  enum Kind { kInput, kWeight, kUnused, kNumber, kFloat } kind = kUnused;
  int64_t number = 0;  // kNumber: the one value that the program was made for; kFloat: its bits
};

// How a result comes about.
struct Output {
  enum Kind { kTensor, kNumber, kArgument, kObject } kind = kTensor;
  size_t index = 0;            // of the program's output; of the argument that is returned as it is
  PyObject* object = nullptr;  // kObject: owned; what the graph always returns there
};

// Under the interpreter's lock, but for what `call` says.
class Compiled {
 public:
  // Takes its own references to `slow` and to the objects of `outputs`.
  Compiled(std::vector<Role> roles, std::vector<Output> outputs, PyObject* slow);
  ~Compiled();
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;

  // From now on calls are the model's. `weights`: in the order of the roles; those that a call itself writes are `state`, whose versions
  // tell nothing. `written`: arguments that are inputs and that a call writes.
  void install(std::shared_ptr<Model> model, const std::vector<at::Tensor>& weights, const std::vector<bool>& state,
               std::vector<size_t> written);
  void uninstall() { model_.reset(); }
  // Uninstalls, too: what is installed next is of these.
  void set_roles(std::vector<Role> roles);
  // A new reference to a tuple, or null with a Python error. Releases the lock while the model runs.
  PyObject* call(PyObject* const* arguments, Py_ssize_t count);
  uint64_t answered() const { return answered_; }

 private:
  struct Held {
    const void* data = nullptr;
    int64_t version = 0;  // kAnyVersion: not looked at
  };
  static constexpr int64_t kAnyVersion = -1;
  bool accepts(PyObject* const* arguments, Py_ssize_t count, std::vector<at::Tensor>& inputs) const;
  PyObject* result(PyObject* const* arguments, std::vector<TensorRef> outputs) const;

  std::vector<Role> roles_;
  std::vector<Output> outputs_;
  PyObject* slow_;
  std::shared_ptr<Model> model_;
  std::vector<at::Tensor> aliases_;  // keep the weights' memory, not their Python objects
  std::vector<Held> held_;           // in the order of the roles
  std::vector<size_t> written_;
  size_t num_inputs_ = 0;
  uint64_t answered_ = 0;
};

// A callable over `compiled`, which it keeps. A new reference.
PyObject* callable_of(std::shared_ptr<Compiled> compiled);

}  // namespace keirin::python
