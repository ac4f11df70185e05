// SPDX-License-Identifier: Apache-2.0
//
// keirin._native: the core as Python sees it. Thin: what a person reads (names, structures, numpy) is Python's in python/keirin.
// Whatever may take longer than a microsecond releases the interpreter's lock.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "core/api/options.h"
#include "core/eager/at_tensor.h"
#include "core/eager/program/library_settings.h"
#include "core/host/plugins.h"
#include "core/tune/race.h"
#include "core/tune/sensitivity.h"
#include "core/tune/verify.h"
#include "python/native/compiled.h"
#include "python/native/draws.h"
#include "python/native/trained.h"

namespace py = pybind11;

namespace keirin::python {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;
using Progress = std::function<void(std::string, double)>;

// Python's own words for a dtype, so that a signature reads as torch code does.
py::dict port_of(const Port& port) {
  py::list sizes;
  for (const Dimension& size : port.sizes) {
    if (!size.free)
      sizes.append(size.size);
    else
      sizes.append(
          py::dict(py::arg("symbol") = size.symbol, py::arg("min") = size.min, py::arg("max") = size.max, py::arg("size") = size.size));
  }
  return py::dict(py::arg("name") = port.name, py::arg("dtype") = port.dtype, py::arg("sizes") = sizes);
}

py::dict signature_of(Model& model) {
  const Signature signature = model.session().signature();
  py::list inputs, outputs;
  for (const Port& port : signature.inputs) inputs.append(port_of(port));
  for (const Port& port : signature.outputs) outputs.append(port_of(port));
  return py::dict(py::arg("inputs") = inputs, py::arg("outputs") = outputs);
}

std::string explain(Model& model) {
  std::string text;
  for (const ModelReport& report : model.session().reports()) text += explain_text(report);
  return text;
}

std::string report_json(Model& model) {
  nlohmann::json out = nlohmann::json::array();
  for (const ModelReport& report : model.session().reports()) out.push_back(to_json(report));
  return out.dump();
}

// Told by the thread that decides, which holds no lock. An exception of the callback ends nothing.
Options with_progress(Options options, py::object callback) {
  if (callback.is_none()) return options;
  std::shared_ptr<py::object> held(new py::object(std::move(callback)), [](py::object* object) {
    const py::gil_scoped_acquire lock;
    delete object;
  });
  options.progress = [held](const std::string& stage, double done, double) {
    const py::gil_scoped_acquire lock;
    try {
      (*held)(stage, done);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("a progress callback of keirin");
    }
  };
  return options;
}

// The end of a model waits for what is being decided, which may wait for the interpreter's lock to tell how far it is.
std::shared_ptr<Model> held_by_python(std::unique_ptr<Session> session) {
  return {new Model(std::move(session)), [](Model* model) {
            if (!PyGILState_Check()) return delete model;
            const py::gil_scoped_release unlocked;
            delete model;
          }};
}

std::shared_ptr<Model> load(const std::string& path, const OptionWords& words, py::object progress) {
  const Options options = with_progress(options_of(words), std::move(progress));
  const py::gil_scoped_release unlocked;
  return held_by_python(take(Session::open(runtime_of(options), path, options)));
}

// `weights`: position among the program's inputs, name, tensor.
std::shared_ptr<Model> open_program(const py::bytes& file, const std::string& name,
                                    const std::vector<std::tuple<size_t, std::string, at::Tensor>>& weights, const OptionWords& words,
                                    py::object progress) {
  const Options options = with_progress(options_of(words), std::move(progress));
  std::map<const void*, uint32_t> storages;
  std::vector<Session::HeldWeight> held;
  for (const auto& [input, weight, tensor] : weights) {
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    const uint32_t number = storages.try_emplace(storage, static_cast<uint32_t>(storages.size())).first->second;
    held.push_back({input, weight, from_at(tensor.detach()), number, static_cast<int64_t>(tensor.storage_offset() * tensor.itemsize())});
  }
  const std::string_view bytes = file;
  const py::gil_scoped_release unlocked;
  return held_by_python(take(Session::open(runtime_of(options), std::as_bytes(std::span(bytes)), name, held, options)));
}

std::vector<at::Tensor> example_inputs(Model& model, uint64_t seed, const std::vector<int64_t>& sizes) {
  std::vector<at::Tensor> out;
  for (const TensorRef& ref : take(model.session().example_inputs(seed, sizes))) out.push_back(to_at(ref));
  return out;
}

py::list plugins(const OptionWords& words) {
  const Options options = options_of(words);
  std::vector<PluginReport> reports;
  {
    const py::gil_scoped_release unlocked;
    reports = runtime_of(options).plugins().reports();
  }
  py::list out;
  for (const PluginReport& report : reports) {
    py::list devices;
    for (const DeviceReport& device : report.devices)
      devices.append(py::dict(py::arg("hardware") = device.hardware, py::arg("used") = device.used, py::arg("name") = device.name,
                              py::arg("reason") = device.reason));
    out.append(py::dict(py::arg("name") = report.name, py::arg("version") = report.version, py::arg("path") = report.path,
                        py::arg("used") = report.used, py::arg("reason") = report.reason, py::arg("advice") = report.advice,
                        py::arg("devices") = devices));
  }
  return out;
}

py::list rows() {
  static const Options kPlain;
  const auto kind = [](const OptionRow& row) {
    switch (row.values.kind) {
      case OptionValues::kSwitch:
        return "switch";
      case OptionValues::kWords:
        return "words";
      case OptionValues::kNumber:
        return "number";
      case OptionValues::kPath:
        return "path";
      default:
        return "text";
    }
  };
  py::list out;
  for (const OptionRow& row : option_rows())
    out.append(py::dict(py::arg("name") = row.name, py::arg("flag") = row.flag, py::arg("values") = allowed_text(row),
                        py::arg("kind") = kind(row), py::arg("words") = row.values.words, py::arg("list") = row.list,
                        py::arg("text") = row.text, py::arg("initial") = row.get(kPlain)));
  return out;
}

// (kind, number) by argument; kinds as in compiled.h, by name.
using NamedRoles = std::vector<std::pair<std::string, int64_t>>;

std::vector<Role> roles_of(const NamedRoles& roles) {
  std::vector<Role> parsed;
  for (const auto& [kind, number] : roles) {
    const Role::Kind its = kind == "input"    ? Role::kInput
                           : kind == "weight" ? Role::kWeight
                           : kind == "number" ? Role::kNumber
                           : kind == "float"  ? Role::kFloat
                                              : Role::kUnused;
    parsed.push_back({its, number});
  }
  return parsed;
}

// Keeps a weak reference: the callable owns the Compiled, and who drops the callable drops the weights.
class Handle {
 public:
  explicit Handle(const std::shared_ptr<Compiled>& compiled) : compiled_(compiled) {}
  bool install(std::shared_ptr<Model> model, const std::vector<at::Tensor>& weights, const std::vector<bool>& state,
               std::vector<size_t> written) {
    const auto compiled = compiled_.lock();
    if (compiled) compiled->install(std::move(model), weights, state, std::move(written));
    return compiled != nullptr;
  }
  void uninstall() {
    if (const auto compiled = compiled_.lock()) compiled->uninstall();
  }
  void set_roles(const NamedRoles& roles) {
    if (const auto compiled = compiled_.lock()) compiled->set_roles(roles_of(roles));
  }
  uint64_t answered() const {
    const auto compiled = compiled_.lock();
    return compiled ? compiled->answered() : 0;
  }

 private:
  std::weak_ptr<Compiled> compiled_;
};

std::vector<Output> outputs_of(const std::vector<std::tuple<std::string, size_t, py::object>>& outputs) {
  std::vector<Output> parsed;
  for (const auto& [kind, index, object] : outputs) {
    const Output::Kind its = kind == "tensor"     ? Output::kTensor
                             : kind == "number"   ? Output::kNumber
                             : kind == "argument" ? Output::kArgument
                                                  : Output::kObject;
    parsed.push_back({its, index, its == Output::kObject ? object.ptr() : nullptr});
  }
  return parsed;
}

// outputs: (kind, index, object) by result. Kinds as in compiled.h, by name.
std::pair<py::object, Handle> graph_callable(const NamedRoles& roles,
                                             const std::vector<std::tuple<std::string, size_t, py::object>>& outputs,
                                             const py::object& slow) {
  auto compiled = std::make_shared<Compiled>(roles_of(roles), outputs_of(outputs), slow.ptr());
  Handle handle(compiled);
  PyObject* callable = callable_of(std::move(compiled));
  if (callable == nullptr) throw py::error_already_set();
  return {py::reinterpret_steal<py::object>(callable), handle};
}

// Whether one of the tensors at `places` of a call's arguments records gradients. Once a call.
bool records(const py::tuple& arguments, const py::tuple& places) {
  for (const py::handle place : places) {
    PyObject* argument = PyTuple_GetItem(arguments.ptr(), PyLong_AsSsize_t(place.ptr()));
    if (argument == nullptr) throw py::error_already_set();
    if ((THPVariable_CheckExact(argument) || THPVariable_Check(argument)) && THPVariable_Unpack(argument).requires_grad()) return true;
  }
  return false;
}

// A half: its model, its outputs as of graph_callable, and the same in Python. The layout's lists are those of TrainedLayout;
// `operands`: ("kept" or "gradient", index, whether channels-last).
using HalfParts = std::tuple<std::shared_ptr<Model>, std::vector<std::tuple<std::string, size_t, py::object>>, py::object>;
py::object step_callable(const HalfParts& forward, const HalfParts& backward, size_t num_arguments,
                         const std::vector<std::tuple<size_t, size_t, bool>>& written, const std::vector<size_t>& returned,
                         const std::vector<bool>& differentiable, const std::vector<size_t>& kept,
                         const std::vector<std::tuple<std::string, size_t, bool>>& operands,
                         const std::vector<std::vector<size_t>>& sources, const py::object& drawn, const py::object& again) {
  const auto half = [](const HalfParts& parts) { return HalfCall{std::get<0>(parts), outputs_of(std::get<1>(parts)), std::get<2>(parts)}; };
  TrainedLayout layout{num_arguments, {}, returned, differentiable, kept, {}, sources};
  for (const auto& [argument, result, is_counted] : written) layout.written.push_back({argument, result, is_counted});
  for (const auto& [kind, index, channels_last] : operands)
    layout.operands.push_back({kind == "gradient", index, channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous});
  PyObject* callable = callable_of(c10::make_intrusive<Trained>(half(forward), half(backward), std::move(layout), drawn, again));
  if (callable == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(callable);
}

// The judge of plans, for what is made of several: lists of equal length, `summands` as in JudgeOptions. Numbers that are too far from
// fp64 are right where roundings explain them: `rounded`(seed, tf32) gives the referee's under such errors (core/tune/sensitivity.h).
py::dict judge_of(const std::vector<at::Tensor>& referee, const std::vector<at::Tensor>& eager, const std::vector<at::Tensor>& candidate,
                  const std::vector<std::string>& names, int64_t summands, const OptionWords& words,
                  const py::function& rounded) {
  const Options its = options_of(words);
  Judgement judgement;
  {
    const py::gil_scoped_release unlocked;
    JudgeOptions options;
    options.summands = summands;
    options.names = names;
    TensorServices& services = runtime_of(its).tensors();
    const std::vector<TensorRef> reference = refs_of(referee), own = refs_of(eager), answered = refs_of(candidate);
    judgement = take(judge(reference, own, answered, services, options));
    if (only_numbers_differ(judgement, options)) {
      const auto run = [&](uint32_t seed, bool tf32) -> Result<std::vector<TensorRef>> {
        const py::gil_scoped_acquire lock;
        return refs_of(py::cast<std::vector<at::Tensor>>(rounded(seed, tf32)));
      };
      const bool may_round = allows_tf32(reference[0]->device());
      const std::vector<Movement> moved =
          take(movements_like(reference, own, services, may_round, roundings_of_sum(summands), run));
      const std::string why = take(unexplained(reference, answered, moved, services));
      judgement.right = why.empty();
      if (!judgement.right) judgement.reason += "; " + why;
    }
  }
  py::list rows;
  for (const OutputVerdict& row : judgement.outputs)
    rows.append(py::dict(py::arg("right") = row.right, py::arg("vacuous") = row.vacuous, py::arg("max_error") = row.max_error,
                         py::arg("eager_error") = row.eager_error, py::arg("rms_error") = row.rms_error,
                         py::arg("eager_rms_error") = row.eager_rms_error));
  return py::dict(py::arg("right") = judgement.right, py::arg("reason") = judgement.reason, py::arg("max_error") = judgement.max_error,
                  py::arg("eager_error") = judgement.eager_error, py::arg("outputs") = rows);
}

// The race of plans, for calls that are Python's: runners[1..] against the first. `wait` is called after calls that only enqueue.
py::dict race_of(const std::vector<std::pair<std::string, py::function>>& calls, double limit_seconds, const py::object& wait) {
  const auto runner = [](const py::object& call) {
    return [&call]() -> Status {
      const py::gil_scoped_acquire lock;
      try {
        call();
        return {};
      } catch (const py::error_already_set& error) {
        return Status(Code::k_internal, error.what());
      }
    };
  };
  std::vector<Runner> runners;
  for (const auto& [name, call] : calls) runners.push_back({name, runner(call)});
  RaceOptions options;
  options.limit_ns = static_cast<uint64_t>(limit_seconds * 1e9);
  if (!wait.is_none()) options.wait = runner(wait);
  if (runners.size() == 2) options.one_must_race.push_back(1);
  RaceSheet sheet;
  {
    const py::gil_scoped_release unlocked;
    sheet = take(race(runners, 0, options));
  }
  py::list rows;
  for (const RaceRow& row : sheet.rows)
    rows.append(py::dict(py::arg("name") = row.name, py::arg("outcome") = std::string(outcome_name(row.outcome)), py::arg("ns") = row.ns,
                         py::arg("baseline_ns") = row.baseline_ns, py::arg("gain") = row.gain, py::arg("gain_low") = row.gain_low,
                         py::arg("gain_high") = row.gain_high, py::arg("note") = row.note));
  return py::dict(py::arg("winner") = sheet.winner, py::arg("disturbed") = sheet.disturbed, py::arg("rows") = rows);
}

void translate(std::exception_ptr exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    const py::object type = py::module_::import("keirin._errors").attr("Error");
    PyErr_SetObject(type.ptr(), type(error.what(), code_name(static_cast<Code>(error.code()))).ptr());
  } catch (const py::error_already_set&) {
    throw;
  } catch (const py::builtin_exception&) {
    throw;
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(exception);
  }
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  module.attr("version") = KEIRIN_VERSION;
  module.attr("torch_version") = KEIRIN_TORCH_VERSION;
  py::register_exception_translator(translate);
  py::class_<Model, std::shared_ptr<Model>>(module, "Model")
      .def("call", &Model::call, Unlocked())
      .def(
          "compile", [](Model& model, const std::vector<at::Tensor>& inputs) { (void)model.compile(inputs); }, Unlocked())
      .def("effects",
           [](Model& model, const std::vector<at::Tensor>& inputs) {
             Session::Effects found;
             {
               const py::gil_scoped_release unlocked;
               found = model.effects(inputs);
             }
             return py::dict(py::arg("written_weights") = found.written_weights, py::arg("draws_random") = found.draws_random,
                             py::arg("in_segments") = found.in_segments, py::arg("written_inputs") = found.written_inputs);
           })
      .def("is_decided", &Model::is_decided)
      .def("meet", &Model::meet)
      .def("why_not_beside_calls", [](Model& model) { return model.session().why_not_beside_calls(); })
      .def("end_deciding", [](Model& model) { model.session().end_deciding(); }, Unlocked())
      .def("settle",
           [](Model& model, double seconds) {
             const py::gil_scoped_release unlocked;
             return model.session().settle(std::chrono::nanoseconds(std::llround(seconds * 1e9)));
           })
      .def("set_exclusive", &Model::set_exclusive)
      .def("let_inputs_belong_together", [](Model& model) { model.session().let_inputs_belong_together(); })
      .def("keep_memory_in_place", [](Model& model) { model.session().keep_memory_in_place(); })
      .def("let_results_be_constant", [](Model& model, size_t from) { model.session().let_results_be_constant(from); })
      .def("signature", &signature_of)
      .def("explain", &explain, Unlocked())
      .def("report_json", &report_json, Unlocked())
      .def("example_inputs", &example_inputs, Unlocked())
      .def_property_readonly("name", [](Model& model) { return model.session().name(); })
      // As LibTorch calls it.
      .def_property_readonly("device", [](Model& model) {
        const Device device = model.session().device();
        return device.kind == Device::kCpu ? std::string("cpu") : "cuda:" + std::to_string(device.index);
      });
  py::class_<Handle>(module, "Handle")
      .def("install", &Handle::install)
      .def("uninstall", &Handle::uninstall)
      .def("set_roles", &Handle::set_roles)
      .def_property_readonly("answered", &Handle::answered);
  py::class_<RepeatedDraws>(module, "RepeatedDraws")
      .def(py::init<py::function, at::Device>())
      .def("draw", &RepeatedDraws::draw, py::call_guard<py::gil_scoped_release>());
  module.def("load", &load);
  module.def("open_program", &open_program);
  module.def("plugins", &plugins);
  module.def("option_rows", &rows);
  module.def("check_options", [](const OptionWords& words) { (void)options_of(words); });
  module.def("graph_callable", &graph_callable);
  module.def("step_callable", &step_callable);
  module.def("records", &records);
  module.def("judge", &judge_of);
  module.def("race", &race_of);
}

}  // namespace keirin::python
