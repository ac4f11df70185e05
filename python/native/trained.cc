// SPDX-License-Identifier: Apache-2.0
#include "python/native/trained.h"

#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/eager/at_tensor.h"

namespace py = pybind11;

namespace keirin::python {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kCapsule = "keirin.trained";

py::object wrapped(const at::Tensor& tensor) {
  return tensor.defined() ? py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor)) : py::object(py::none());
}

py::list wrapped(const variable_list& tensors) {
  py::list out;
  for (const at::Tensor& tensor : tensors) out.append(wrapped(tensor));
  return out;
}

variable_list unwrapped(const py::object& results) {
  variable_list out;
  for (const py::handle each : py::reinterpret_steal<py::object>(PySequence_Fast(results.ptr(), "a half answers a sequence")))
    out.push_back(THPVariable_Check(each.ptr()) ? THPVariable_Unpack(each.ptr()) : at::Tensor());
  return out;
}

// The same memory as a tensor that nobody else has, with a version of its own.
at::Tensor own(const at::Tensor& tensor) {
  return at::Tensor(tensor.getIntrusivePtr()->shallow_copy_and_detach(/*version_counter=*/0, /*allow_tensor_metadata_change=*/true));
}

// Buffers are many and small, the statistics of a norm: those of one dtype are written by one launch.
void write(const TrainedLayout& layout, at::TensorList arguments, const variable_list& results) {
  std::map<at::ScalarType, std::pair<variable_list, variable_list>> by_dtype;
  for (const TrainedLayout::Written& written : layout.written) {
    const at::Tensor& argument = arguments[written.argument];
    auto& [to, from] = by_dtype[argument.scalar_type()];
    to.push_back(own(argument));
    from.push_back(results[written.result]);
    if (written.is_counted && !argument.is_inference()) argument.unsafeGetTensorImpl()->bump_version();
  }
  for (auto& [dtype, pair] : by_dtype) at::_foreach_copy_(pair.first, pair.second);
}

// What is recorded: the step and the form of what it returned, for the backward; the arguments, for one that is to be differentiated.
struct Recorded : torch::CustomClassHolder {
  c10::intrusive_ptr<Trained> step;
  variable_list arguments;
  std::vector<int64_t> versions;
  std::vector<std::pair<std::vector<int64_t>, at::TensorOptions>> returned;
};

struct StepNode : torch::autograd::Function<StepNode> {
  static variable_list forward(AutogradContext* context, const c10::intrusive_ptr<Trained>& step, at::TensorList arguments,
                               const variable_list& drawn) {
    const TrainedLayout& layout = step->layout;
    // The casts of autocast are in the programs.
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    variable_list inputs = arguments.vec();
    inputs.insert(inputs.end(), drawn.begin(), drawn.end());
    variable_list results = step->forward.call(inputs);
    write(layout, arguments, results);
    variable_list kept, returned, constant;
    for (const size_t i : layout.kept) kept.push_back(results[i]);
    for (size_t k = 0; k < layout.returned.size(); ++k) {
      returned.push_back(results[layout.returned[k]]);
      if (!layout.differentiable[k]) constant.push_back(returned.back());
    }
    auto recorded = c10::make_intrusive<Recorded>();
    recorded->step = step;
    recorded->arguments = arguments.vec();
    for (const at::Tensor& argument : recorded->arguments)
      recorded->versions.push_back(argument.is_inference() ? 0 : static_cast<int64_t>(argument._version()));
    for (const at::Tensor& each : returned) recorded->returned.emplace_back(each.sizes().vec(), each.options());
    context->saved_data["recorded"] = c10::IValue::make_capsule(std::move(recorded));
    context->save_for_backward(std::move(kept));
    context->mark_non_differentiable(constant);
    context->set_materialize_grads(false);
    return returned;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto recorded = c10::static_intrusive_pointer_cast<Recorded>(context->saved_data["recorded"].toCapsule());
    const TrainedLayout& layout = recorded->step->layout;
    variable_list out(1 + layout.num_arguments + 1);  // of what `forward` takes
    if (c10::GradMode::is_enabled()) return differentiable(*recorded, gradients, std::move(out));
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const variable_list kept = context->get_saved_variables();
    variable_list operands;
    std::set<size_t> unasked;
    for (const TrainedLayout::Operand& operand : layout.operands) {
      if (!operand.is_gradient) {
        operands.push_back(kept[operand.index]);
        continue;
      }
      // An output that the loss does not depend on has no gradient, which the backward takes for zeros.
      if (!gradients[operand.index].defined()) {
        const auto& [sizes, options] = recorded->returned[operand.index];
        gradients[operand.index] = at::zeros(sizes, options);
        unasked.insert(operand.index);
      }
      operands.push_back(gradients[operand.index].contiguous(operand.format));
    }
    variable_list results = recorded->step->backward.call(operands);
    // What only such outputs depend on has none either, as in eager: an optimiser leaves alone what has no gradient, and not zeros.
    const auto is_asked = [&](const std::vector<size_t>& sources) {
      return sources.empty() || !std::ranges::all_of(sources, [&](size_t i) { return unasked.contains(i); });
    };
    for (size_t i = 0; i < results.size() && i < layout.num_arguments; ++i)
      if (unasked.empty() || is_asked(layout.sources[i])) out[1 + i] = std::move(results[i]);
    return out;
  }

  // The compiled backward has no derivative of its own: eager runs the step again, and its backward has one.
  static variable_list differentiable(const Recorded& recorded, const variable_list& gradients, variable_list out) {
    const variable_list& arguments = recorded.arguments;
    for (size_t i = 0; i < arguments.size(); ++i)
      TORCH_CHECK(arguments[i].is_inference() || static_cast<int64_t>(arguments[i]._version()) == recorded.versions[i],
                  "a compiled training step is run again by eager for a second derivative, and argument ", i,
                  " of it has been modified by an inplace operation since");
    const py::gil_scoped_acquire lock;
    variable_list results = unwrapped(recorded.step->again(wrapped(arguments), wrapped(gradients)));
    for (size_t i = 0; i < results.size() && i < arguments.size(); ++i) out[1 + i] = std::move(results[i]);
    return out;
  }
};

PyObject* call_step(const c10::intrusive_ptr<Trained>& step, PyObject* const* arguments, Py_ssize_t count) {
  TORCH_CHECK_TYPE(static_cast<size_t>(count) == step->layout.num_arguments, "the step takes ", step->layout.num_arguments,
                   " arguments, not ", count);
  variable_list inputs;
  inputs.reserve(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    TORCH_CHECK_TYPE(THPVariable_Check(arguments[i]), "argument ", i, " is not a tensor");
    inputs.push_back(THPVariable_Unpack(arguments[i]));
  }
  const variable_list drawn = step->drawn.is_none() ? variable_list() : unwrapped(step->drawn());
  const variable_list returned = StepNode::apply(step, at::TensorList(inputs), drawn);
  py::tuple out(returned.size());
  for (size_t i = 0; i < returned.size(); ++i) out[i] = wrapped(returned[i]);
  return out.release().ptr();
}

PyObject* call_capsule(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  auto* held = static_cast<c10::intrusive_ptr<Trained>*>(PyCapsule_GetPointer(self, kCapsule));
  if (held == nullptr) return nullptr;
  const c10::intrusive_ptr<Trained> step = *held;
  HANDLE_TH_ERRORS
  try {
    return call_step(step, arguments, count);
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  }
  END_HANDLE_TH_ERRORS
}

PyMethodDef call_method = {"keirin_step", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&call_capsule)), METH_FASTCALL,
                           "A compiled forward, recorded with the compiled backward that was made with it."};

}  // namespace

variable_list HalfCall::call(const variable_list& inputs) const {
  std::optional<py::gil_scoped_release> unlocked;
  if (PyGILState_Check()) unlocked.emplace();
  std::vector<TensorRef> refs = refs_of(inputs);
  if (model->session().is_decided(refs)) {
    Result<std::vector<TensorRef>> answer = model->session().call(refs);
    if (answer.ok()) {
      variable_list out;
      for (const Output& output : outputs) {
        out.emplace_back(output.kind == Output::kArgument ? inputs[output.index] : at::Tensor());
        if (output.kind != Output::kTensor || !(*answer)[output.index]) continue;
        // A plan keeps what it answered, for when its memory comes back. A gradient becomes a parameter's own, without a copy, only where
        // nobody else has that tensor.
        const at::Tensor& tensor = to_at((*answer)[output.index]);
        out.back() = own(tensor);
        // What is kept for the backward in memory that the caller has, too, of a result or of an argument, is refused there once that was
        // written, as eager refuses it: they count as one (TensorServices::view).
        const c10::VariableVersion& version = tensor.unsafeGetTensorImpl()->version_counter();
        if (!tensor.is_inference() && !version.unique()) out.back().unsafeGetTensorImpl()->set_version_counter(version);
      }
      return out;
    }
  }
  const py::gil_scoped_acquire lock;
  return unwrapped(slow(*py::tuple(wrapped(inputs))));
}

Trained::~Trained() {
  if (!Py_IsInitialized()) {  // nobody counts any more
    for (py::object* each : {&forward.slow, &backward.slow, &drawn, &again}) each->release();
    return;
  }
  const py::gil_scoped_acquire lock;
  for (py::object* each : {&forward.slow, &backward.slow, &drawn, &again}) *each = py::object();
}

PyObject* callable_of(c10::intrusive_ptr<Trained> trained) {
  auto* held = new c10::intrusive_ptr<Trained>(std::move(trained));
  const py::object capsule = py::reinterpret_steal<py::object>(PyCapsule_New(held, kCapsule, [](PyObject* self) {
    delete static_cast<c10::intrusive_ptr<Trained>*>(PyCapsule_GetPointer(self, kCapsule));
  }));
  if (!capsule) {
    delete held;
    return nullptr;
  }
  return PyCFunction_New(&call_method, capsule.ptr());
}

}  // namespace keirin::python
