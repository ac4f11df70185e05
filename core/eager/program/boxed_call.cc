// SPDX-License-Identifier: Apache-2.0
//
// Building operands from bound arguments, and pushing them on the interpreter stack.
#include "core/eager/program/boxed_call.h"

#include <ATen/detail/CUDAHooksInterface.h>

#include "core/eager/cuda_graph/library.h"

namespace keirin {
namespace {

using c10::IValue;
using c10::TypeKind;
using Kind = Operand::Kind;

Kind list_kind(const c10::TypePtr& type) {
  c10::TypePtr list = type;
  if (list->kind() == TypeKind::OptionalType) list = list->castRaw<c10::OptionalType>()->getElementType();
  switch (list->castRaw<c10::ListType>()->getElementType()->kind()) {
    case TypeKind::OptionalType:
      return Kind::kOptionalTensors;
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return Kind::kInts;
    case TypeKind::FloatType:
    case TypeKind::SymFloatType:
      return Kind::kFloats;
    case TypeKind::BoolType:
    case TypeKind::SymBoolType:
      return Kind::kBools;
    case TypeKind::NumberType:
      return Kind::kScalars;
    default:
      return Kind::kTensors;
  }
}

void call_view(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto is_allowed = [](const at::Tensor& self) { return self.layout() != at::kStrided || self.is_contiguous(); };
  if (is_allowed(stack[0].toTensor())) return op.callBoxed(&stack);
  if (stack.size() == 2 && stack[1].isIntList()) {
    stack = {at::reshape(stack[0].toTensor(), stack[1].toIntVector())};
    return;
  }
  const torch::jit::Stack arguments = stack;
  try {
    op.callBoxed(&stack);
  } catch (const c10::Error&) {
    stack = arguments;
    stack[0] = stack[0].toTensor().contiguous();
    op.callBoxed(&stack);  // what fails for another reason fails again
  }
}

void call_with_images_alike(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
  for (size_t i = 0; i < stack.size(); ++i)
    if (arguments[i].name() == "input" && stack[i].toTensor().is_cpu()) format = stack[i].toTensor().suggest_memory_format();
  for (size_t i = 0; i < stack.size(); ++i) {
    if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
    const bool is_image = arguments[i].name() == "input" || arguments[i].name() == "grad_out";
    stack[i] = stack[i].toTensor().contiguous(is_image ? format : at::MemoryFormat::Contiguous);
  }
  op.callBoxed(&stack);
}

bool is_random_state(const std::string& name) { return name == "philox_seed" || name == "philox_offset"; }

// A bias as the kernel reads it, in pieces of 16 bytes: rows that lie together, each begun at such a piece. As scaled_dot_product_attention
// itself pads what it is given; a value that was computed for it lies row by row, whatever its rows' length.
at::Tensor aligned_bias(const at::Tensor& bias) {
  const int64_t piece = std::max<int64_t>(1, 16 / bias.element_size()), last = bias.dim() - 1;
  bool fits = bias.stride(last) == 1 || bias.size(last) <= 1;
  for (int64_t d = 0; d < last; ++d) fits &= bias.size(d) <= 1 || bias.stride(d) % piece == 0;
  if (fits) return bias;
  at::Tensor once = bias;  // what is expanded stays so
  for (int64_t d = 0; d < bias.dim(); ++d)
    if (bias.stride(d) == 0 && d != last) once = once.narrow(d, 0, std::min<int64_t>(1, bias.size(d)));
  std::vector<int64_t> sizes = once.sizes().vec();
  sizes.back() = (sizes.back() + piece - 1) / piece * piece;
  return at::empty(sizes, once.options()).narrow(last, 0, bias.size(last)).copy_(once).expand(bias.sizes());
}

void call_attention(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const c10::FunctionSchema& schema = op.schema();
  for (size_t i = 0; i < stack.size(); ++i) {
    const std::string& name = schema.arguments()[i].name();
    const bool has_rows = name == "query" || name == "key" || name == "value" || name == "out" || name.starts_with("grad_out");
    const bool is_bias = name == "attn_bias" || name == "bias";
    if ((!has_rows && !is_bias) || !stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
    const at::Tensor& tensor = stack[i].toTensor();
    if (is_bias) {
      stack[i] = aligned_bias(tensor);
      continue;
    }
    if (tensor.size(-1) > 1 && tensor.stride(-1) != 1) stack[i] = tensor.contiguous();
  }
  const c10::Device device = stack[0].isTensor() ? stack[0].toTensor().device() : c10::Device(at::kCPU);
  bool drops = false;
  for (size_t i = 0; i < stack.size(); ++i)
    if (schema.arguments()[i].name() == "dropout_p") drops = stack[i].toDouble() != 0;
  // cuDNN's attention has its state on the device whoever calls, and AMD's kernels keep it elsewhere.
  const bool moves = drops && device.is_cuda() && schema.name().find("efficient") != std::string::npos;
  if (!moves || at::detail::getCUDAHooks().hasROCM()) return op.callBoxed(&stack);
  const bool reads_host = !is_recorded({Device::kCuda, device.index()});
  for (size_t i = 0; i < stack.size() && reads_host; ++i)
    if (is_random_state(schema.arguments()[i].name())) stack[i] = stack[i].toTensor().cpu();
  op.callBoxed(&stack);
  for (size_t i = 0; i < stack.size(); ++i)
    if (is_random_state(schema.returns()[i].name())) stack[i] = stack[i].toTensor().to(device);
}

}  // namespace

uint32_t OperandList::add_constant(IValue value) {
  constants_.push_back(std::move(value));
  return static_cast<uint32_t>(constants_.size() - 1);
}

Result<Operand> OperandList::make(const BoundArg& arg, const SlotOf& slot) {
  if (arg.kind == BoundArg::Kind::kConstant) return Operand{Kind::kConstant, add_constant(arg.constant), 0};
  KRN_TRY_LET(const uint32_t index, slot(arg.name));
  return Operand{arg.wrap ? Kind::kWrap : Kind::kSlot, index, 0};
}

Status OperandList::add(const BoundArg& arg, const c10::TypePtr& type, const SlotOf& slot) {
  if (arg.kind != BoundArg::Kind::kList) {
    KRN_TRY_LET(const Operand operand, make(arg, slot));
    top_.push_back(operand);
    return {};
  }
  const auto begin = static_cast<uint32_t>(items_.size());
  for (const BoundArg& item : arg.items) {
    KRN_TRY_LET(const Operand operand, make(item, slot));
    items_.push_back(operand);
  }
  top_.push_back({list_kind(type), begin, static_cast<uint32_t>(arg.items.size())});
  return {};
}

IValue OperandList::value(const Operand& operand, Slots& slots) const {
  const auto each = [&](auto&& push) {
    for (uint32_t i = 0; i < operand.count; ++i) push(value(items_[operand.index + i], slots));
  };
  switch (operand.kind) {
    case Kind::kConstant:
      return constants_[operand.index];
    case Kind::kSlot:
      return slots[operand.index];
    case Kind::kTake:
      return std::move(slots[operand.index]);
    case Kind::kWrap:
      return wrap_number(slots[operand.index]);
    case Kind::kTensors: {
      c10::List<at::Tensor> list;
      list.reserve(operand.count);
      each([&](IValue v) { list.push_back(std::move(v).toTensor()); });
      return list;
    }
    case Kind::kOptionalTensors: {
      c10::List<std::optional<at::Tensor>> list;
      list.reserve(operand.count);
      each([&](IValue v) { list.push_back(std::move(v).toOptional<at::Tensor>()); });
      return list;
    }
    case Kind::kInts: {
      c10::List<int64_t> list;
      list.reserve(operand.count);
      each([&](const IValue& v) { list.push_back(v.toInt()); });
      return list;
    }
    case Kind::kFloats: {
      c10::List<double> list;
      each([&](const IValue& v) { list.push_back(v.toScalar().toDouble()); });
      return list;
    }
    case Kind::kBools: {
      c10::List<bool> list;
      each([&](const IValue& v) { list.push_back(v.toBool()); });
      return list;
    }
    case Kind::kScalars: {
      c10::List<at::Scalar> list;
      each([&](const IValue& v) { list.push_back(v.toScalar()); });
      return list;
    }
  }
  return {};
}

void OperandList::push_all(Slots& slots, torch::jit::Stack& stack) const {
  for (const Operand& operand : top_) stack.push_back(value(operand, slots));
}

void OperandList::visit_slots(const std::function<void(Operand&)>& visitor) {
  const auto visit = [&](Operand& operand) {
    if (operand.kind == Kind::kSlot || operand.kind == Kind::kTake || operand.kind == Kind::kWrap) visitor(operand);
  };
  for (auto operand = top_.rbegin(); operand != top_.rend(); ++operand) {
    visit(*operand);
    for (uint32_t i = operand->count; i-- > 0;) visit(items_[operand->index + i]);
  }
}

Care care_of(const c10::FunctionSchema& schema) {
  const std::string& name = schema.name();
  if (name == "aten::view" || name == "aten::_unsafe_view" || name == "aten::view_as" || name == "aten::view_as_complex")
    return Care::kStrides;
  if (name == "aten::native_group_norm" || name == "aten::native_group_norm_backward") return Care::kImagesAlike;
  const bool attends = name.starts_with("aten::_scaled_dot_product_") && name.find("_attention_math") == std::string::npos;
  return attends || name.starts_with("aten::_efficient_attention") ? Care::kAttention : Care::kNone;
}

bool misreads_f64(const c10::FunctionSchema& schema) { return schema.name().find("_cudnn_attention") != std::string::npos; }

void call_operator(const c10::OperatorHandle& op, Care care, torch::jit::Stack& stack) {
  switch (care) {
    case Care::kNone:
      return op.callBoxed(&stack);
    case Care::kStrides:
      return call_view(op, stack);
    case Care::kImagesAlike:
      return call_with_images_alike(op, stack);
    case Care::kAttention:
      return call_attention(op, stack);
  }
}

Result<BoxedCall> make_boxed_call(const BoundCall& call, const OperandList::SlotOf& slot) {
  BoxedCall boxed{call.op, {}, care_of(call.op.schema())};
  for (size_t i = 0; i < call.args.size(); ++i) {
    KRN_TRY(boxed.operands.add(call.args[i], call.op.schema().arguments()[i].type(), slot));
  }
  return boxed;
}

}  // namespace keirin
