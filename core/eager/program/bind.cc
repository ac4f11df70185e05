// SPDX-License-Identifier: Apache-2.0
//
// Binding by the FunctionSchema: the parameter's type decides, never the tag that the file happens to use, because
// writers tag empty lists and optional values as they please.
#include "core/eager/program/bind.h"

#include <ATen/ScalarOps.h>

#include "core/eager/at_tensor.h"
#include "core/eager/program/package_ops.h"

namespace keirin {
namespace {

using c10::IValue;
using c10::TypeKind;

BoundArg constant(IValue value) { return {BoundArg::Kind::kConstant, std::move(value), {}, false, {}}; }
BoundArg named(std::string name) { return {BoundArg::Kind::kName, {}, std::move(name), false, {}}; }

// The elements of an argument that is a list of any tag; nullopt if it is none.
std::optional<std::vector<pt2::Argument>> elements(const pt2::Argument& arg) {
  std::vector<pt2::Argument> items;
  const auto add_all = [&](const auto& list) {
    for (const auto& item : list) items.push_back({pt2::Argument::Value(item)});
  };
  if (const auto* tensors = arg.get<pt2::TensorsArg>()) {
    for (const auto& name : tensors->names) items.push_back({pt2::TensorArg{name}});
  } else if (const auto* optional = arg.get<pt2::OptionalTensorsArg>()) {
    for (const auto& name : optional->names) {
      items.push_back(name ? pt2::Argument{pt2::TensorArg{*name}} : pt2::Argument{pt2::NoneArg{}});
    }
  } else if (const auto* bools = arg.get<std::vector<bool>>()) {
    for (const bool value : *bools) items.push_back({value});
  } else if (const auto* ints = arg.get<std::vector<int64_t>>()) {
    add_all(*ints);
  } else if (const auto* floats = arg.get<std::vector<double>>()) {
    add_all(*floats);
  } else if (const auto* strings = arg.get<std::vector<std::string>>()) {
    add_all(*strings);
  } else if (const auto* sym_ints = arg.get<std::vector<pt2::SymIntArg>>()) {
    add_all(*sym_ints);
  } else if (const auto* sym_floats = arg.get<std::vector<pt2::SymFloatArg>>()) {
    add_all(*sym_floats);
  } else if (const auto* sym_bools = arg.get<std::vector<pt2::SymBoolArg>>()) {
    add_all(*sym_bools);
  } else {
    return std::nullopt;
  }
  return items;
}

class Binder {
 public:
  explicit Binder(const DeviceMap& devices) : devices_(devices) {}

  // nullopt: no widening leads from the argument to the type.
  std::optional<BoundArg> bind(const pt2::Argument& arg, const c10::TypePtr& type,
                               std::optional<int32_t> list_size) const {
    if (type->kind() == TypeKind::OptionalType) {
      if (arg.is<pt2::NoneArg>()) return constant({});
      return bind(arg, type->castRaw<c10::OptionalType>()->getElementType(), list_size);
    }
    if (type->kind() == TypeKind::ListType) {
      return bind_list(arg, type->castRaw<c10::ListType>()->getElementType(), list_size);
    }
    return bind_one(arg, type->kind());
  }

 private:
  std::optional<BoundArg> bind_one(const pt2::Argument& arg, TypeKind kind) const {
    switch (kind) {
      case TypeKind::TensorType:
        return bind_tensor(arg);
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        return bind_int(arg);
      case TypeKind::FloatType:
      case TypeKind::SymFloatType:
        return bind_float(arg);
      case TypeKind::BoolType:
      case TypeKind::SymBoolType:
        return bind_bool(arg);
      case TypeKind::NumberType:
        return bind_number(arg);
      case TypeKind::StringType:
        if (const auto* text = arg.get<std::string>()) return constant(*text);
        return std::nullopt;
      case TypeKind::DeviceObjType:
        if (const auto* device = arg.get<pt2::Device>()) return constant(devices_.map(*device));
        return std::nullopt;
      case TypeKind::GeneratorType:
        if (arg.is<pt2::NoneArg>()) return constant({});
        return std::nullopt;
      default:
        return std::nullopt;
    }
  }

  std::optional<BoundArg> bind_tensor(const pt2::Argument& arg) const {
    if (const auto* tensor = arg.get<pt2::TensorArg>()) return named(tensor->name);
    if (arg.is<pt2::NoneArg>()) return constant(at::Tensor());
    std::optional<BoundArg> number = bind_number(arg);
    if (!number) return std::nullopt;
    if (number->kind == BoundArg::Kind::kName) {
      number->wrap = true;
      return number;
    }
    return constant(wrap_number(number->constant));
  }

  std::optional<BoundArg> bind_int(const pt2::Argument& arg) const {
    if (const auto* value = arg.get<int64_t>()) return constant(*value);
    if (const auto* value = arg.get<bool>()) return constant(static_cast<int64_t>(*value));
    if (const auto* symbol = arg.get<pt2::SymIntArg>()) {
      return symbol->is_name() ? named(symbol->name) : constant(symbol->value);
    }
    if (const auto* dtype = arg.get<DType>()) return constant(static_cast<int64_t>(scalar_type_of(*dtype)));
    if (arg.is<pt2::Layout>()) return constant(static_cast<int64_t>(at::kStrided));
    if (const auto* format = arg.get<pt2::MemoryFormat>())
      return constant(static_cast<int64_t>(memory_format(*format)));
    return std::nullopt;
  }

  std::optional<BoundArg> bind_float(const pt2::Argument& arg) const {
    if (const auto* value = arg.get<double>()) return constant(*value);
    if (const auto* value = arg.get<int64_t>()) return constant(static_cast<double>(*value));
    if (const auto* symbol = arg.get<pt2::SymFloatArg>()) {
      return symbol->is_name() ? named(symbol->name) : constant(symbol->value);
    }
    if (const auto* symbol = arg.get<pt2::SymIntArg>()) {
      return symbol->is_name() ? named(symbol->name) : constant(static_cast<double>(symbol->value));
    }
    return std::nullopt;
  }

  std::optional<BoundArg> bind_bool(const pt2::Argument& arg) const {
    if (const auto* value = arg.get<bool>()) return constant(*value);
    if (const auto* symbol = arg.get<pt2::SymBoolArg>()) {
      return symbol->is_name() ? named(symbol->name) : constant(symbol->value);
    }
    return std::nullopt;
  }

  // int64, double or bool as written: never forced to double.
  std::optional<BoundArg> bind_number(const pt2::Argument& arg) const {
    if (const auto* value = arg.get<bool>()) return constant(*value);
    if (const auto* value = arg.get<int64_t>()) return constant(*value);
    if (const auto* value = arg.get<double>()) return constant(*value);
    if (const auto* value = arg.get<pt2::ComplexArg>()) return constant(c10::complex<double>(value->real, value->imag));
    if (const auto* symbol = arg.get<pt2::SymIntArg>()) return bind_int({*symbol});
    if (const auto* symbol = arg.get<pt2::SymFloatArg>()) return bind_float({*symbol});
    if (const auto* symbol = arg.get<pt2::SymBoolArg>()) return bind_bool({*symbol});
    return std::nullopt;
  }

  std::optional<BoundArg> bind_list(const pt2::Argument& arg, const c10::TypePtr& type,
                                    std::optional<int32_t> list_size) const {
    std::vector<BoundArg> items;
    if (const auto list = elements(arg)) {
      for (const pt2::Argument& item : *list) {
        auto bound = bind(item, type, std::nullopt);
        if (!bound) return std::nullopt;
        items.push_back(std::move(*bound));
      }
    } else {  // one int stands for n of them
      auto bound = bind(arg, type, std::nullopt);
      if (!bound || !list_size) return std::nullopt;
      items.assign(static_cast<size_t>(*list_size), *bound);
    }
    for (const BoundArg& item : items) {
      if (item.kind == BoundArg::Kind::kConstant) continue;
      BoundArg list = constant({});
      list.kind = BoundArg::Kind::kList;
      list.items = std::move(items);
      return list;
    }
    return constant_list(items, type);
  }

  template <class T, class Get>
  static BoundArg typed_list(const std::vector<BoundArg>& items, Get&& get) {
    c10::List<T> list;
    for (const BoundArg& item : items) list.push_back(get(item.constant));
    return constant(std::move(list));
  }

  static std::optional<BoundArg> constant_list(const std::vector<BoundArg>& items, const c10::TypePtr& type) {
    switch (type->kind()) {
      case TypeKind::TensorType:
        return typed_list<at::Tensor>(items, [](const IValue& v) { return v.toTensor(); });
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        return typed_list<int64_t>(items, [](const IValue& v) { return v.toInt(); });
      case TypeKind::FloatType:
      case TypeKind::SymFloatType:
        return typed_list<double>(items, [](const IValue& v) { return v.toDouble(); });
      case TypeKind::BoolType:
      case TypeKind::SymBoolType:
        return typed_list<bool>(items, [](const IValue& v) { return v.toBool(); });
      case TypeKind::StringType:
        return typed_list<std::string>(items, [](const IValue& v) { return v.toStringRef(); });
      case TypeKind::NumberType:
        return typed_list<at::Scalar>(items, [](const IValue& v) { return v.toScalar(); });
      case TypeKind::OptionalType:
        if (type->castRaw<c10::OptionalType>()->getElementType()->kind() != TypeKind::TensorType) return std::nullopt;
        return typed_list<std::optional<at::Tensor>>(items, [](const IValue& v) { return v.toOptional<at::Tensor>(); });
      default:
        return std::nullopt;
    }
  }

  static at::MemoryFormat memory_format(pt2::MemoryFormat format) {
    switch (format) {
      case pt2::MemoryFormat::kContiguous:
        return at::MemoryFormat::Contiguous;
      case pt2::MemoryFormat::kChannelsLast:
        return at::MemoryFormat::ChannelsLast;
      case pt2::MemoryFormat::kChannelsLast3d:
        return at::MemoryFormat::ChannelsLast3d;
      case pt2::MemoryFormat::kPreserve:
        break;
    }
    return at::MemoryFormat::Preserve;
  }

  const DeviceMap& devices_;
};

bool takes_tensors(const c10::FunctionSchema& schema) {
  for (const c10::Argument& arg : schema.arguments()) {
    if (arg.type()->isSubtypeOf(*c10::TensorType::get())) return true;
  }
  return false;
}

// What an omitted argument is. Factories take the file's word where eager would ask process-wide defaults.
IValue default_of(const c10::Argument& parameter, bool is_factory, const pt2::Node& node, const pt2::Graph& graph,
                  const DeviceMap& devices) {
  if (is_factory && parameter.name() == "dtype" && !node.outputs.empty()) {
    if (const auto* result = node.outputs[0].get<pt2::TensorArg>()) {
      const auto meta = graph.tensor_values.find(result->name);
      if (meta != graph.tensor_values.end()) return static_cast<int64_t>(scalar_type_of(meta->second.dtype));
    }
  }
  if (is_factory && parameter.name() == "device" && devices.target.kind != Device::kCpu && devices.cpu_moves) {
    return at_device(devices.target);
  }
  return parameter.default_value() ? *parameter.default_value() : IValue();
}

Status refuse(const pt2::Node& node, std::string what, std::string advice) {
  return Status(Code::k_unsupported,
                Message{std::move(what),
                        "node " + node.name + " (" + node.target + ", byte " + std::to_string(node.json_byte) + ")",
                        {},
                        std::move(advice)});
}

}  // namespace

c10::Device DeviceMap::map(const pt2::Device& device) const {
  if (device.type == "cpu" && !cpu_moves) return c10::Device(at::kCPU);
  if (device.type == "meta") return c10::Device(at::kMeta);
  return at_device(target);
}

DeviceMap make_device_map(const pt2::Graph& graph, Device target) {
  DeviceMap devices{target, true};
  for (const auto& [name, meta] : graph.tensor_values)
    devices.cpu_moves = devices.cpu_moves && meta.device.type == "cpu";
  return devices;
}

Result<c10::OperatorHandle> find_operator(const std::string& target) {
  constexpr std::string_view kPrefix = "torch.ops.";
  const auto bad = [&](const char* why, std::string advice = {}) {
    return Status(Code::k_unsupported, Message{"op " + target + " " + why, {}, {}, std::move(advice)});
  };
  if (!target.starts_with(kPrefix)) return bad("is not an operator");
  const size_t name_begin = target.find('.', kPrefix.size());
  const size_t overload_begin = target.rfind('.');
  if (name_begin == std::string::npos || overload_begin <= name_begin) return bad("has no overload");
  const std::string space = target.substr(kPrefix.size(), name_begin - kPrefix.size());
  const std::string name = target.substr(name_begin + 1, overload_begin - name_begin - 1);
  std::string overload = target.substr(overload_begin + 1);
  if (overload == "default") overload.clear();
  auto op = c10::Dispatcher::singleton().findSchema({space + "::" + name, overload});
  if (!op) op = find_package_op(space, name, overload);
  if (!op) return bad("is not registered in this process", package_advice(space));
  return *op;
}

at::Tensor wrap_number(const IValue& number) {
  at::Tensor tensor = c10::scalar_to_tensor(number.toScalar());
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

Result<BoundCall> bind_node(const pt2::Node& node, const pt2::Graph& graph, const DeviceMap& devices) {
  auto op = find_operator(node.target);
  if (!op.ok()) return std::move(op).status().at("node " + node.name + ", byte " + std::to_string(node.json_byte));
  BoundCall call{*op, {}};
  const c10::FunctionSchema& schema = call.op.schema();
  const Binder binder(devices);
  const bool is_factory = !takes_tensors(schema);
  std::vector<const pt2::NamedArgument*> given(schema.arguments().size(), nullptr);
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const pt2::NamedArgument& input = node.inputs[i];
    const std::optional<int> index =
        input.name.empty() ? static_cast<int>(i) : schema.argumentIndexWithName(input.name);
    if (!index || static_cast<size_t>(*index) >= given.size() || given[*index] != nullptr) {
      return refuse(node, "argument \"" + input.name + "\" is not a parameter of the operator here, or is given twice",
                    "use a LibTorch as new as the one that wrote the file");
    }
    given[*index] = &input;
  }
  for (size_t i = 0; i < given.size(); ++i) {
    const c10::Argument& parameter = schema.arguments()[i];
    const bool absent = given[i] == nullptr || (is_factory && given[i]->arg.is<pt2::NoneArg>());
    if (absent) {
      if (given[i] == nullptr && !parameter.default_value() && parameter.type()->kind() != TypeKind::OptionalType) {
        return refuse(node, "argument \"" + parameter.name() + "\" is missing", "re-export the model");
      }
      call.args.push_back(constant(default_of(parameter, is_factory, node, graph, devices)));
      continue;
    }
    auto bound = binder.bind(given[i]->arg, parameter.type(), parameter.N());
    if (!bound) {
      return refuse(node, "argument \"" + parameter.name() + "\" does not fit the type " + parameter.type()->str(),
                    "re-export the model");
    }
    call.args.push_back(std::move(*bound));
  }
  return call;
}

}  // namespace keirin
