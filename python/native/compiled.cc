// SPDX-License-Identifier: Apache-2.0
#include "python/native/compiled.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>

#include "core/eager/at_tensor.h"

namespace keirin::python {
namespace {

constexpr const char* kCapsule = "keirin.compiled";

class WithoutLock {
 public:
  WithoutLock() : state_(PyEval_SaveThread()) {}
  ~WithoutLock() { PyEval_RestoreThread(state_); }

 private:
  PyThreadState* state_;
};

PyObject* call_capsule(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  auto* compiled = static_cast<std::shared_ptr<Compiled>*>(PyCapsule_GetPointer(self, kCapsule));
  if (compiled == nullptr) return nullptr;
  const std::shared_ptr<Compiled> keep = *compiled;  // `slow` may drop the callable
  return keep->call(arguments, count);
}

// A number of a plan lies on its device. A new reference, or null with a Python error.
PyObject* number_of(const at::Tensor& tensor) {
  try {
    return PyLong_FromLongLong(tensor.item<int64_t>());
  } catch (...) {
    torch::translate_exception_to_python(std::current_exception());
    return nullptr;
  }
}

PyMethodDef call_method = {"keirin_graph", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&call_capsule)), METH_FASTCALL,
                           "Answers a call of one graph: compiled where that was measured faster, else by eager."};

}  // namespace

Compiled::Compiled(std::vector<Role> roles, std::vector<Output> outputs, PyObject* slow) : outputs_(std::move(outputs)), slow_(slow) {
  Py_INCREF(slow_);
  for (const Output& output : outputs_) Py_XINCREF(output.object);
  set_roles(std::move(roles));
}

void Compiled::set_roles(std::vector<Role> roles) {
  uninstall();
  roles_ = std::move(roles);
  num_inputs_ = 0;
  for (const Role& role : roles_) num_inputs_ += role.kind == Role::kInput;
}

Compiled::~Compiled() {
  for (const Output& output : outputs_) Py_XDECREF(output.object);
  Py_DECREF(slow_);
}

void Compiled::install(std::shared_ptr<Model> model, const std::vector<at::Tensor>& weights, const std::vector<bool>& state,
                       std::vector<size_t> written) {
  aliases_.clear();
  held_.clear();
  for (size_t i = 0; i < weights.size(); ++i) {
    aliases_.push_back(weights[i].detach());
    const bool has_version = !weights[i].is_inference() && !(i < state.size() && state[i]);
    held_.push_back({weights[i].unsafeGetTensorImpl()->data(), has_version ? static_cast<int64_t>(weights[i]._version()) : kAnyVersion});
  }
  written_ = std::move(written);
  model_ = std::move(model);
}

bool Compiled::accepts(PyObject* const* arguments, Py_ssize_t count, std::vector<at::Tensor>& inputs) const {
  if (static_cast<size_t>(count) != roles_.size()) return false;
  const bool grad = c10::GradMode::is_enabled();
  size_t weight = 0;
  for (size_t i = 0; i < roles_.size(); ++i) {
    const Role& role = roles_[i];
    if (role.kind == Role::kUnused) continue;
    if (role.kind == Role::kNumber) {
      if (!PyLong_Check(arguments[i]) || PyLong_AsLongLong(arguments[i]) != role.number) return PyErr_Clear(), false;
      continue;
    }
    if (!THPVariable_CheckExact(arguments[i])) return false;  // a subclass has a meaning of its own
    const at::Tensor& tensor = THPVariable_Unpack(arguments[i]);
    if (role.kind == Role::kFloat) {
      if (tensor.scalar_type() != at::kDouble || tensor.numel() != 1 || !tensor.is_cpu()) return false;
      if (std::memcmp(tensor.const_data_ptr(), &role.number, sizeof(double)) != 0) return false;
      continue;
    }
    c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    if (grad && impl.requires_grad()) return false;
    if (role.kind == Role::kWeight) {
      const Held& held = held_[weight++];
      if (!impl.has_storage() || impl.data() != held.data) return false;
      if (held.version != kAnyVersion && (impl.is_inference() || impl.version_counter().current_version() != held.version)) return false;
    } else {
      if (impl.layout() != at::kStrided || tensor.is_conj() || tensor.is_neg()) return false;
      inputs.push_back(tensor);
    }
  }
  return true;
}

PyObject* Compiled::call(PyObject* const* arguments, Py_ssize_t count) {
  std::vector<at::Tensor> inputs;
  const std::shared_ptr<Model> model = model_;
  if (model) inputs.reserve(num_inputs_);
  if (!model || !accepts(arguments, count, inputs)) return PyObject_Vectorcall(slow_, arguments, static_cast<size_t>(count), nullptr);
  std::vector<TensorRef> refs;
  refs.reserve(inputs.size());
  for (at::Tensor& input : inputs) refs.push_back(from_at(std::move(input)));
  if (!model->session().is_decided(refs)) return PyObject_Vectorcall(slow_, arguments, static_cast<size_t>(count), nullptr);
  Result<std::vector<TensorRef>> outputs = [&] {
    const WithoutLock unlocked;
    const auto turn = model->turn();
    return model->session().call(refs);
  }();
  if (!outputs.ok()) {
    // What did not begin to write is asked of eager, which raises its own error.
    if (written_.empty() && outputs.status().code() != Code::k_half_done)
      return PyObject_Vectorcall(slow_, arguments, static_cast<size_t>(count), nullptr);
    try {
      raise(outputs.status());
    } catch (...) {
      torch::translate_exception_to_python(std::current_exception());
      return nullptr;
    }
  }
  for (const size_t i : written_)  // a plan writes memory and tells no version
    if (const at::Tensor& tensor = THPVariable_Unpack(arguments[i]); !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  ++answered_;
  return result(arguments, std::move(*outputs));
}

PyObject* Compiled::result(PyObject* const* arguments, std::vector<TensorRef> outputs) const {
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(outputs_.size()));
  if (tuple == nullptr) return nullptr;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const Output& output = outputs_[i];
    PyObject* object = output.object;
    if (output.kind == Output::kArgument) object = arguments[output.index];
    if (output.kind == Output::kTensor || output.kind == Output::kNumber) {
      const TensorRef& tensor = outputs[output.index];
      if (output.kind == Output::kNumber && tensor)
        object = number_of(to_at(tensor));
      else
        object = tensor ? THPVariable_Wrap(to_at(tensor)) : Py_NewRef(Py_None);
      if (object == nullptr) {
        Py_DECREF(tuple);
        return nullptr;
      }
    } else {
      Py_INCREF(object);
    }
    PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), object);
  }
  return tuple;
}

PyObject* callable_of(std::shared_ptr<Compiled> compiled) {
  auto* held = new std::shared_ptr<Compiled>(std::move(compiled));
  PyObject* capsule = PyCapsule_New(
      held, kCapsule, [](PyObject* self) { delete static_cast<std::shared_ptr<Compiled>*>(PyCapsule_GetPointer(self, kCapsule)); });
  if (capsule == nullptr) {
    delete held;
    return nullptr;
  }
  PyObject* callable = PyCFunction_New(&call_method, capsule);
  Py_DECREF(capsule);
  return callable;
}

}  // namespace keirin::python
