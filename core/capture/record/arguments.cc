// SPDX-License-Identifier: Apache-2.0
#include "core/capture/record/arguments.h"

#include <ATen/ATen.h>

namespace keirin {
namespace {

using c10::IValue;
using c10::TypeKind;

std::optional<pt2::Argument> number_of(const at::Scalar& number) {
  if (number.isSymbolic()) return std::nullopt;
  if (number.isBoolean()) return pt2::Argument{number.toBool()};
  if (number.isIntegral(false)) return pt2::Argument{number.toLong()};
  if (number.isFloatingPoint()) return pt2::Argument{number.toDouble()};
  const c10::complex<double> value = number.toComplexDouble();
  return pt2::Argument{pt2::ComplexArg{value.real(), value.imag()}};
}

template <class T, class Get>
std::optional<pt2::Argument> list_of(const IValue& value, Get&& get) {
  std::vector<T> out;
  for (const IValue& each : value.toListRef()) out.push_back(get(each));
  return pt2::Argument{std::move(out)};
}

}  // namespace

std::optional<pt2::Argument> argument_of(const IValue& value, const c10::Argument& parameter,
                                         const std::function<std::string(const at::Tensor&)>& name_of) {
  c10::TypePtr type = parameter.type();
  if (type->kind() == TypeKind::OptionalType) {
    if (value.isNone()) return pt2::Argument{pt2::NoneArg{}};
    type = type->castRaw<c10::OptionalType>()->getElementType();
  }
  const auto integer = [](const IValue& v) { return v.isSymInt() ? v.toSymInt().guard_int("arguments.cc", __LINE__) : v.toInt(); };
  switch (type->kind()) {
    case TypeKind::TensorType: {
      const at::Tensor& tensor = value.toTensor();
      if (!tensor.defined()) return pt2::Argument{pt2::NoneArg{}};
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return number_of(tensor.item());
      return pt2::Argument{pt2::TensorArg{name_of(tensor)}};
    }
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return pt2::Argument{static_cast<int64_t>(integer(value))};
    case TypeKind::FloatType:
    case TypeKind::SymFloatType:
      return pt2::Argument{value.isSymFloat() ? value.toSymFloat().guard_float("arguments.cc", __LINE__) : value.toDouble()};
    case TypeKind::BoolType:
    case TypeKind::SymBoolType:
      return pt2::Argument{value.isSymBool() ? value.toSymBool().guard_bool("arguments.cc", __LINE__) : value.toBool()};
    case TypeKind::NumberType:
      return number_of(value.toScalar());
    case TypeKind::StringType:
      return pt2::Argument{value.toStringRef()};
    case TypeKind::DeviceObjType: {
      const c10::Device device = value.toDevice();
      return pt2::Argument{pt2::Device{c10::DeviceTypeName(device.type(), true),
                                       device.has_index() ? std::optional<int64_t>(device.index()) : std::nullopt}};
    }
    case TypeKind::GeneratorType:
      if (!value.isNone() && value.toGenerator().defined()) return std::nullopt;
      return pt2::Argument{pt2::NoneArg{}};
    case TypeKind::ListType:
      break;
    default:
      return std::nullopt;
  }
  const c10::TypePtr element = type->castRaw<c10::ListType>()->getElementType();
  switch (element->kind()) {
    case TypeKind::TensorType: {
      pt2::TensorsArg out;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return std::nullopt;
        out.names.push_back(name_of(tensor));
      }
      return pt2::Argument{std::move(out)};
    }
    case TypeKind::OptionalType: {
      if (element->castRaw<c10::OptionalType>()->getElementType()->kind() != TypeKind::TensorType) return std::nullopt;
      pt2::OptionalTensorsArg out;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
        out.names.push_back(tensor && tensor->defined() ? std::optional<std::string>(name_of(*tensor)) : std::nullopt);
      return pt2::Argument{std::move(out)};
    }
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return list_of<int64_t>(value, integer);
    case TypeKind::FloatType:
      return list_of<double>(value, [](const IValue& v) { return v.toDouble(); });
    case TypeKind::BoolType:
      return list_of<bool>(value, [](const IValue& v) { return v.toBool(); });
    case TypeKind::StringType:
      return list_of<std::string>(value, [](const IValue& v) { return v.toStringRef(); });
    default:
      return std::nullopt;
  }
}

}  // namespace keirin
