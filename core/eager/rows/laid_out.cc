// SPDX-License-Identifier: Apache-2.0
#include "core/eager/rows/laid_out.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "core/eager/at_tensor.h"

namespace keirin {
namespace {

using at::Tensor;
using torch::jit::Stack;

// Multiplications up to which LibTorch's plain product over a transposed weight needs fewer instructions than the library's set-up.
constexpr int64_t kSmallProduct = int64_t{1} << 18;

Tensor call(const c10::OperatorHandle& op, Stack stack) {
  op.callBoxed(stack);
  return stack.at(0).toTensor();
}

// LibTorch's operators over weights in the library's layout.
struct Library {
  std::optional<c10::OperatorHandle> reorder_conv, conv, reorder_linear, linear;
  bool there = false;
};

const Library& library() {
  static const Library found = [] {
    const auto find = [](const char* name) { return c10::Dispatcher::singleton().findSchema({name, ""}); };
    Library out{find("mkldnn::_reorder_convolution_weight"), find("mkldnn::_convolution_pointwise"),
                find("mkldnn::_reorder_linear_weight"), find("mkldnn::_linear_pointwise"), false};
    if (const auto over_acl = find("mkldnn::_is_mkldnn_acl_supported");
        over_acl && out.reorder_conv && out.conv && out.reorder_linear && out.linear) {
      Stack stack;
      over_acl->callBoxed(stack);
      out.there = stack.at(0).toBool();
    }
    return out;
  }();
  return found;
}

// A weight and the same in another layout. The weight is held so that its address, by which it is known, is nobody else's meanwhile.
struct Layout {
  Tensor weight, laid_out;
};

std::shared_ptr<const Layout> share(const Tensor& weight, const std::string& how, const std::function<Tensor()>& make) {
  static std::mutex mutex;
  static auto* known = new std::map<std::pair<const void*, std::string>, std::weak_ptr<const Layout>>;
  const std::lock_guard lock(mutex);
  std::erase_if(*known, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<const Layout>& entry = (*known)[{weight.const_data_ptr(), how}];
  if (std::shared_ptr<const Layout> found = entry.lock()) return found;
  auto made = std::make_shared<const Layout>(Layout{weight, make()});
  entry = made;
  return made;
}

std::string words(std::initializer_list<Dims> lists) {
  std::string text;
  for (const Dims& list : lists) {
    for (const int64_t value : list) text += std::to_string(value) + ",";
    text += ";";
  }
  return text;
}

c10::IValue bias_of(RowIn in) { return in.size() > 2 && in[2]->defined() ? c10::IValue(*in[2]) : c10::IValue(); }

void push_no_post_op(Stack& stack) {
  stack.insert(stack.end(), {std::string("none"), c10::List<std::optional<at::Scalar>>(), c10::IValue()});
}

RowRun convolution(const Op& op, const Type& x, const Tensor& weight) {
  const Dims stride = op.ints(AttrKey::k_stride), padding = op.ints(AttrKey::k_padding), dilation = op.ints(AttrKey::k_dilation);
  const int64_t groups = op.i(AttrKey::k_groups);
  const auto held = share(weight, "conv " + words({x.sizes, Dims(weight.sizes().vec()), stride, padding, dilation, {groups}}), [&] {
    return call(*library().reorder_conv, {weight, padding.vec(), stride.vec(), dilation.vec(), groups, x.sizes.vec()});
  });
  return [=](RowIn in, RowOut out) {
    Stack stack{*in[0], held->laid_out, bias_of(in), padding.vec(), stride.vec(), dilation.vec(), groups};
    push_no_post_op(stack);
    out[0] = call(*library().conv, std::move(stack));
  };
}

RowRun linear(const Type& x, const Type& result, const Tensor& weight) {
  const int64_t columns = weight.size(1), rows = x.num_elements() / columns;
  if (rows == 1 || rows * weight.numel() <= kSmallProduct) {
    const auto held = share(weight, "transposed", [&] { return weight.t().contiguous(); });
    return [held, rows, columns, sizes = result.sizes](RowIn in, RowOut out) {
      const Tensor flat = in[0]->reshape({rows, columns});
      const c10::IValue bias = bias_of(in);
      out[0] = (bias.isNone() ? at::mm(flat, held->laid_out) : at::addmm(bias.toTensor(), flat, held->laid_out)).reshape(sizes);
    };
  }
  const auto held = share(weight, "linear " + words({{rows}}), [&] { return call(*library().reorder_linear, {weight, rows}); });
  return [held](RowIn in, RowOut out) {
    Stack stack{*in[0], held->laid_out, bias_of(in)};
    push_no_post_op(stack);
    out[0] = call(*library().linear, std::move(stack));
  };
}

}  // namespace

LaidOut lay_out_weight(const Graph& graph, OpId id, const std::vector<TensorRef>& constants, const CallOptions& options) {
  const Op& op = graph.ops[id];
  const bool conv = op.code == OpCode::k_conv && !op.b(AttrKey::k_transposed);
  if ((!conv && op.code != OpCode::k_linear) || options.float_dtype || options.device.kind != Device::kCpu) return {};
  const Value& weight = graph.values[op.operands[1]];
  const Type &x = graph.type(op.operands[0]), &result = graph.type(op.results[0]);
  if (weight.kind != ValueKind::kConstant || weight.index >= constants.size() || !constants[weight.index]) return {};
  for (const Type* type : {&x, &weight.type, &result})
    if (type->dtype != DType::k_f32 || type->num_elements() == 0) return {};
  // The library's convolution answers channels-last.
  if (conv ? x.rank() != 4 || result.strides != channels_last_strides(result.sizes) : weight.type.rank() != 2) return {};
  if (!library().there || !at::globalContext().userEnabledMkldnn()) return {};
  const at::Tensor tensor = to_at(constants[weight.index]);
  return {conv ? convolution(op, x, tensor) : linear(x, result, tensor), weight.type.bytes()};
}

}  // namespace keirin
