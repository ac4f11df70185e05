// SPDX-License-Identifier: Apache-2.0
//
// A boxed fallback at LibTorch's key for modes sees each operator with its arguments, above autograd. It is on for a thread while that
// thread records, and off below the operator, so that what an operator is made of is not seen.
#include "core/capture/record/recorder.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "core/capture/record/arguments.h"
#include "core/eager/at_tensor.h"
#include "core/eager/program/observer.h"
#include "core/eager/program/schema_effects.h"
#include "core/eager/tensor_services.h"

namespace keirin {
namespace {

using c10::IValue;
using torch::jit::Stack;

constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

// Operators whose numbers follow from sizes and dtypes, which a recording is made for.
bool tells_of_form(std::string_view op) {
  static const std::set<std::string_view> names = {"aten::size",
                                                   "aten::sym_size",
                                                   "aten::stride",
                                                   "aten::sym_stride",
                                                   "aten::numel",
                                                   "aten::sym_numel",
                                                   "aten::dim",
                                                   "aten::storage_offset",
                                                   "aten::sym_storage_offset",
                                                   "aten::is_contiguous",
                                                   "aten::sym_is_contiguous",
                                                   "aten::is_same_size",
                                                   "aten::is_floating_point",
                                                   "aten::is_complex",
                                                   "aten::is_signed",
                                                   "aten::is_conj",
                                                   "aten::is_neg",
                                                   "aten::is_inference",
                                                   "aten::is_leaf",
                                                   "aten::can_cast",
                                                   "aten::result_type",
                                                   "aten::promote_types",
                                                   "aten::_has_compatible_shallow_copy_type"};
  return names.contains(op);
}

// `equal` of one tensor with itself, or of tensors of different sizes.
bool form_decides_equal(const c10::FunctionSchema& schema, const Stack& stack) {
  if (schema.name() != "aten::equal" || stack.size() < 2) return false;
  const IValue &a = stack[stack.size() - 2], &b = stack[stack.size() - 1];
  return a.isTensor() && b.isTensor() && (a.toTensor().is_same(b.toTensor()) || a.toTensor().sizes() != b.toTensor().sizes());
}

// Memory with nothing in it yet: code outside of operators may fill it (torch::tensor does).
bool makes_empty(std::string_view op) {
  return op == "aten::empty" || op == "aten::empty_like" || op == "aten::empty_strided" || op == "aten::empty_permuted" ||
         op == "aten::new_empty" || op == "aten::new_empty_strided";
}

// Whether the operator writes all of what it writes and reads nothing of it.
bool overwrites(const c10::FunctionSchema& schema) {
  static const std::set<std::string_view> names = {"aten::fill_",    "aten::zero_",       "aten::copy_",      "aten::normal_",
                                                   "aten::uniform_", "aten::random_",     "aten::bernoulli_", "aten::exponential_",
                                                   "aten::cauchy_",  "aten::log_normal_", "aten::geometric_"};
  if (names.contains(schema.name())) return true;
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& a) { return a.is_out(); });
}

class Recorder {
 public:
  explicit Recorder(const std::vector<std::pair<std::string, at::Tensor>>& names) {
    for (const auto& [name, tensor] : names)
      if (tensor.defined()) given_names_.emplace(tensor.unsafeGetTensorImpl(), name);
    program_.name = "model";
    program_.dialect = "TRAINING";
  }

  void add_input(const at::Tensor& tensor) {
    const std::string name = "input" + std::to_string(program_.inputs.size());
    add_source(tensor, name);
    reads_storage(tensor);
  }

  // An operator of the recorded thread. Throws what the operator throws.
  void call(const c10::OperatorHandle& op, Stack& stack);
  void add_output(const at::Tensor& tensor);
  void put_back();
  // The first thing that has no program, or ok.
  const Status& trouble() const { return trouble_; }
  // After the function has let go of what it made.
  Recording finish();

 private:
  using Impl = c10::TensorImpl;
  struct Value {
    c10::weak_intrusive_ptr<Impl> impl;  // keeps the address from being used again
    std::string name;
    std::optional<pt2::Node> pending;    // made empty: not in the program before something is known of its content
  };
  struct Read {
    std::string name, value;
    at::Tensor tensor, content;  // `content`: of one without a given name, as it was first seen
  };

  void refuse(const std::string& what, const std::string& op, const std::string& advice) {
    if (trouble_.ok()) trouble_ = Status(Code::k_unsupported, Message{what, op, "the function itself answers", advice});
  }
  std::string new_name() { return "t" + std::to_string(num_values_++); }
  void describe(const at::Tensor& tensor, const std::string& name);
  void add_source(const at::Tensor& tensor, const std::string& name);
  void reads_storage(const at::Tensor& tensor) {
    if (tensor.has_storage()) sources_.emplace(tensor.storage().unsafeGetStorageImpl(), std::nullopt);
  }
  void bind(const at::Tensor& tensor, const std::string& name) {
    values_.insert_or_assign(tensor.unsafeGetTensorImpl(), Value{c10::weak_intrusive_ptr<Impl>(tensor.getIntrusivePtr()), name, {}});
  }
  std::string name_of(const at::Tensor& tensor, bool is_overwritten = false);
  std::string name_of_stranger(const at::Tensor& tensor);
  std::string constant(const at::Tensor& tensor);
  pt2::Argument result(const at::Tensor& tensor);
  void save_before_write(const at::Tensor& tensor);

  pt2::Program program_;
  std::vector<Read> reads_;
  std::unordered_map<const Impl*, std::string> given_names_;
  std::unordered_map<const Impl*, Value> values_;
  // Storages that were there before, with what they held where the function wrote.
  std::map<c10::StorageImpl*, std::optional<std::pair<at::Tensor, at::Tensor>>> sources_;
  size_t num_values_ = 0;
  Status trouble_;
};

void Recorder::describe(const at::Tensor& tensor, const std::string& name) {
  const bool strided = tensor.layout() == at::kStrided && dtype_of(tensor.scalar_type()) != DType::kNone && !tensor.is_quantized();
  if (!strided)
    return refuse(
        "a tensor of layout " + c10::str(tensor.layout()) + " and dtype " + c10::toString(tensor.scalar_type()) + " has no program", name,
        "");
  pt2::TensorMeta meta;
  meta.dtype = dtype_of(tensor.scalar_type());
  for (const int64_t size : tensor.sizes()) meta.sizes.push_back({size, nullptr, {}});
  for (const int64_t stride : tensor.strides()) meta.strides.push_back({stride, nullptr, {}});
  meta.storage_offset = {tensor.storage_offset(), nullptr, {}};
  meta.device = {at::DeviceTypeName(tensor.device().type(), true),
                 tensor.device().has_index() ? std::optional<int64_t>(tensor.device().index()) : std::nullopt};
  program_.graph.tensor_values[name] = std::move(meta);
}

void Recorder::add_source(const at::Tensor& tensor, const std::string& name) {
  describe(tensor, name);
  bind(tensor, name);
  program_.graph.inputs.push_back({pt2::TensorArg{name}});
  pt2::InputSpec spec;
  spec.arg = {pt2::TensorArg{name}};
  program_.inputs.push_back(std::move(spec));
}

// A copy of what the tensor holds now, and in the program a copy of that: what is made in each call is new memory in each call.
std::string Recorder::constant(const at::Tensor& tensor) {
  const std::string value = "constant" + std::to_string(reads_.size());
  const at::Tensor content = tensor.clone();
  reads_.push_back({value, value, {}, content});
  add_source(content, value);
  pt2::Node node;
  node.name = new_name();
  node.target = "torch.ops.aten.clone.default";
  node.inputs.push_back({"self", {pt2::TensorArg{value}}, pt2::ArgumentKind::kPositional});
  node.outputs.push_back({pt2::TensorArg{node.name}});
  describe(tensor, node.name);
  const std::string name = node.name;
  program_.graph.nodes.push_back(std::move(node));
  bind(tensor, name);
  return name;
}

// A tensor that no operator of the function made.
std::string Recorder::name_of_stranger(const at::Tensor& tensor) {
  // `data()` and the like share memory without an operator: the same elements are the same value.
  for (const auto& [impl, value] : values_) {
    const auto known = value.impl.lock();
    if (!known || !known->has_storage() || !tensor.has_storage() || value.pending) continue;
    if (known->storage().unsafeGetStorageImpl() != tensor.storage().unsafeGetStorageImpl()) continue;
    if (known->dtype() == tensor.dtype() && known->sizes() == tensor.sizes() && known->strides() == tensor.strides() &&
        known->storage_offset() == tensor.storage_offset()) {
      const std::string name = value.name;
      bind(tensor, name);
      return name;
    }
    if (!sources_.contains(tensor.storage().unsafeGetStorageImpl())) {
      refuse("a tensor shares memory with another through no operator", "", "");
      break;
    }
  }
  const auto given = given_names_.find(tensor.unsafeGetTensorImpl());
  Read read{given != given_names_.end() ? given->second : "tensor" + std::to_string(reads_.size()),
            "read" + std::to_string(reads_.size()),
            tensor,
            {}};
  if (given == given_names_.end()) read.content = tensor.clone();
  const std::string value = read.value;
  reads_.push_back(std::move(read));
  add_source(tensor, value);
  reads_storage(tensor);
  return value;
}

std::string Recorder::name_of(const at::Tensor& tensor, bool is_overwritten) {
  const auto found = values_.find(tensor.unsafeGetTensorImpl());
  if (found == values_.end() || found->second.impl.expired()) return name_of_stranger(tensor);
  Value& value = found->second;
  if (!value.pending) return value.name;
  if (!is_overwritten) return constant(tensor);
  program_.graph.nodes.push_back(std::move(*value.pending));
  value.pending.reset();
  return value.name;
}

pt2::Argument Recorder::result(const at::Tensor& tensor) {
  if (!tensor.defined()) return {pt2::NoneArg{}};
  const std::string name = new_name();
  describe(tensor, name);
  bind(tensor, name);
  return {pt2::TensorArg{name}};
}

void Recorder::save_before_write(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return;
  const auto source = sources_.find(tensor.storage().unsafeGetStorageImpl());
  if (source == sources_.end()) return;
  if (source->second) return;
  const at::Tensor all = storage_elements(tensor);
  source->second.emplace(all, all.clone());
}

void Recorder::call(const c10::OperatorHandle& op, Stack& stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string name = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  const size_t count = schema.arguments().size(), begin = stack.size() - count;
  const bool gives_numbers = std::any_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& r) {
    return !r.type()->isSubtypeOf(*c10::TensorType::get()) && r.type()->kind() != c10::TypeKind::ListType &&
           r.type()->kind() != c10::TypeKind::NoneType && !r.type()->isSubtypeOf(*c10::OptionalType::ofTensor());
  });
  if (!trouble_.ok() || tells_of_form(schema.name()) || form_decides_equal(schema, stack)) return op.callBoxed(stack);
  if (gives_numbers)
    refuse(name + " hands the value of a tensor to the code around it", name,
           "keep it in tensors (torch::where), or capture the parts before and behind it");
  if (op.hasTag(at::Tag::dynamic_output_shape))
    refuse("how much " + name + " returns depends on the values of a tensor", name, "capture the parts before and behind it");
  if (schema.name() == "aten::set_" || schema.name() == "aten::resize_" || schema.name() == "aten::resize_as_")
    refuse(name + " gives a tensor other memory", name, "");
  if (!trouble_.ok()) return op.callBoxed(stack);

  pt2::Node node;
  node.name = "n" + std::to_string(num_values_++);
  node.target = "torch.ops." + schema.name() + "." + (schema.overload_name().empty() ? "default" : schema.overload_name());
  node.target.replace(node.target.find("::"), 2, ".");
  Stack arguments(stack.begin() + static_cast<ptrdiff_t>(begin), stack.end());
  const std::vector<size_t> written = written_arguments(schema, arguments);
  const bool overwriting = overwrites(schema);
  for (size_t i = 0; i < count; ++i) {
    const bool is_written = std::find(written.begin(), written.end(), i) != written.end();
    auto argument = argument_of(arguments[i], schema.arguments()[i],
                                [&](const at::Tensor& tensor) { return name_of(tensor, is_written && overwriting); });
    if (!argument) {
      refuse("argument \"" + schema.arguments()[i].name() + "\" of " + name + " has no form in a program", name, "");
      return op.callBoxed(stack);
    }
    node.inputs.push_back({schema.arguments()[i].name(), std::move(*argument),
                           schema.arguments()[i].kwarg_only() ? pt2::ArgumentKind::kKeyword : pt2::ArgumentKind::kPositional});
  }
  for (const size_t i : written) {
    Stack one{arguments[i]};
    each_tensor(one, [&](at::Tensor& tensor) { save_before_write(tensor); });
  }
  arguments.clear();
  op.callBoxed(stack);

  for (size_t i = stack.size() - schema.returns().size(); i < stack.size(); ++i) {
    const IValue& value = stack[i];
    if (value.isTensor()) {
      node.outputs.push_back(result(value.toTensor()));
    } else if (value.isTensorList()) {
      pt2::TensorsArg list;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        const pt2::Argument one = result(tensor);
        if (const auto* named = one.get<pt2::TensorArg>()) list.names.push_back(named->name);
        else refuse(name + " returns a list with a hole", name, "");
      }
      node.outputs.push_back({std::move(list)});
    } else if (value.isNone()) {
      node.outputs.push_back({pt2::NoneArg{}});
    } else {
      refuse(name + " returns something other than tensors", name, "");
    }
  }
  if (makes_empty(schema.name()) && node.outputs.size() == 1 && stack.back().isTensor())
    values_.find(stack.back().toTensor().unsafeGetTensorImpl())->second.pending = std::move(node);
  else
    program_.graph.nodes.push_back(std::move(node));
}

void Recorder::add_output(const at::Tensor& tensor) {
  pt2::Argument argument{pt2::NoneArg{}};
  if (tensor.defined()) argument = {pt2::TensorArg{name_of(tensor)}};
  program_.graph.outputs.push_back(argument);
  pt2::OutputSpec spec;
  spec.arg = std::move(argument);
  program_.outputs.push_back(std::move(spec));
}

void Recorder::put_back() {
  for (auto& [storage, saved] : sources_)
    if (saved) saved->first.copy_(saved->second);
}

Recording Recorder::finish() {
  Recording out;
  std::vector<pt2::Node> first;
  for (Read& read : reads_) {
    // Nobody else has it: the function made it unseen (torch::scalar_tensor), and makes another one in its next call.
    const bool is_made = read.tensor.defined() && read.content.defined() && read.tensor.use_count() == 1;
    if (is_made) {
      pt2::Node node;
      node.name = read.value + "_copy";
      node.target = "torch.ops.aten.clone.default";
      const std::string source = read.value + "_content";
      program_.graph.tensor_values[source] = program_.graph.tensor_values[read.value];
      for (size_t i = 0; i < program_.inputs.size(); ++i)
        if (program_.inputs[i].arg.names() == std::vector{read.value})
          program_.inputs[i].arg = program_.graph.inputs[i] = {pt2::TensorArg{source}};
      node.inputs.push_back({"self", {pt2::TensorArg{source}}, pt2::ArgumentKind::kPositional});
      node.outputs.push_back({pt2::TensorArg{read.value}});
      first.push_back(std::move(node));
    }
    const bool is_own = is_made || !read.tensor.defined();
    out.reads.push_back({read.name, is_own ? read.content : read.tensor, is_own});
  }
  program_.graph.nodes.insert(program_.graph.nodes.begin(), std::make_move_iterator(first.begin()), std::make_move_iterator(first.end()));
  out.file.path = "memory";
  out.file.models["model"].program = std::move(program_);
  return out;
}

thread_local Recorder* t_recorder = nullptr;

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard off(kKey);
  if (t_recorder == nullptr) return op.callBoxed(*stack);
  t_recorder->call(op, *stack);
}

// One fallback a key and process; never taken away, because threads may be inside.
const Status& registered() {
  static const Status status = catch_torch([] {
    auto* library = new torch::Library(torch::Library::IMPL, "_", kKey, "recorder.cc", __LINE__);
    library->fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  });
  return status;
}

class RecordingScope {
 public:
  explicit RecordingScope(Recorder& recorder) : outer_(std::exchange(t_recorder, &recorder)), key_(kKey) {}
  ~RecordingScope() { t_recorder = outer_; }

 private:
  Recorder* outer_;
  c10::impl::IncludeDispatchKeyGuard key_;
};

Status ready() {
  if (const Status& status = registered(); !status.ok())
    return Status(Code::k_unsupported, Message{"operators cannot be recorded in this process: " + status.message().what,
                                               {},
                                               "the function itself answers",
                                               "another library has taken LibTorch's key for modes"});
  return {};
}

}  // namespace

bool is_recording() { return t_recorder != nullptr; }

Result<Recording> record(const TorchFunction& function, const std::vector<at::Tensor>& inputs,
                         const std::vector<std::pair<std::string, at::Tensor>>& names) {
  KRN_TRY(ready());
  if (t_recorder != nullptr) return Status(Code::k_unsupported, "this thread records already");
  const Device device = inputs.empty() ? Device{} : device_of(inputs[0].device());
  KRN_TRY_LET(const RandomState before, random_state(device));
  Recorder recorder(names);
  Status status = catch_torch([&] {
    const at::NoGradGuard no_grad;
    // A tensor that is given twice is two inputs: another call may have two tensors there.
    std::vector<at::Tensor> given = inputs;
    for (size_t i = 0; i < given.size(); ++i)
      if (std::any_of(given.begin(), given.begin() + static_cast<ptrdiff_t>(i),
                      [&](const at::Tensor& earlier) { return earlier.is_same(given[i]); }))
        given[i] = given[i].alias();
    for (const at::Tensor& input : given) recorder.add_input(input);
    std::vector<at::Tensor> outputs;
    {
      const RecordingScope scope(recorder);
      outputs = function(given);
    }
    for (const at::Tensor& output : outputs) recorder.add_output(output);
  });
  const Status restored = catch_torch([&] {
    const at::NoGradGuard no_grad;
    recorder.put_back();
  });
  KRN_TRY(set_random_state(device, before));
  KRN_TRY(restored);
  if (!status.ok()) return status;
  if (!recorder.trouble().ok()) return recorder.trouble();
  return recorder.finish();
}

Result<pt2::Program> record_parts(const c10::OperatorHandle& op, const std::vector<at::Tensor>& inputs,
                                  const std::function<Stack(const std::vector<at::Tensor>&)>& arguments) {
  constexpr auto kComposite = c10::DispatchKey::CompositeImplicitAutograd;
  if (!op.hasKernelForDispatchKey(kComposite)) return Status(Code::k_unsupported, "the operator is not made of others");
  KRN_TRY(ready());
  Recorder recorder({});
  KRN_TRY(catch_torch([&] {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& input : inputs) recorder.add_input(input);
    Stack stack = arguments(inputs);
    {
      const RecordingScope scope(recorder);
      op.callBoxedForDispatchKey(kComposite, stack);
    }
    each_tensor(stack, [&](at::Tensor& output) { recorder.add_output(output); });
  }));
  KRN_TRY(recorder.trouble());
  Recording recording = recorder.finish();
  pt2::Program program = std::move(recording.file.models.at("model").program);
  if (!recording.reads.empty()) return Status(Code::k_unsupported, "its parts read a tensor that they make unseen");
  if (program.graph.nodes.size() > kMostParts)
    return Status(Code::k_unsupported, "it has " + std::to_string(program.graph.nodes.size()) + " parts");
  return program;
}

}  // namespace keirin
