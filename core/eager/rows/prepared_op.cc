// SPDX-License-Identifier: Apache-2.0
//
// The choice between a row's function and an opaque call, and the opaque call itself.
#include "core/eager/rows/prepared_op.h"

#include "core/eager/at_tensor.h"

namespace keirin {
namespace {

using c10::IValue;
using Source = OpaqueCall::Source;

bool lies_so(const at::Tensor& tensor, const Dims& strides) {
  for (size_t d = 0; d < strides.size(); ++d)
    if (tensor.size(static_cast<int64_t>(d)) != 1 && tensor.stride(static_cast<int64_t>(d)) != strides[d]) return false;
  return true;
}

at::Tensor laid_out(const at::Tensor& tensor, const Dims& strides) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.dim() != static_cast<int64_t>(strides.size()) || tensor.numel() < 2 ||
      lies_so(tensor, strides))
    return tensor;
  const at::MemoryFormat format = tensor.suggest_memory_format();
  if (tensor.is_floating_point() && format != at::MemoryFormat::Contiguous && tensor.is_contiguous(format)) return tensor;
  return at::empty_strided(tensor.sizes(), strides, tensor.options()).copy_(tensor);
}

// An opaque operator under the options of the referee or under none.
struct OpaqueRun {
  std::shared_ptr<const CallTable> calls;
  const OpaqueCall& call;
  std::vector<at::ScalarType> own, held;  // of the operands, then of the results
  size_t num_operands;
  bool referee;

  void once(RowIn in, RowOut out, const std::vector<at::ScalarType>* to) const {
    Slots slots(in.size());
    for (size_t i = 0; i < in.size(); ++i) {
      const at::Tensor operand = to == nullptr ? *in[i] : in[i]->to((*to)[i]);
      slots[i] = i < call.strides.size() ? laid_out(operand, call.strides[i]) : operand;
    }
    std::vector<at::Tensor> clones(call.cloned.size());
    for (size_t i = 0; i < clones.size(); ++i) {
      clones[i] = slots[call.cloned[i]].toTensor().clone();
      slots[call.cloned[i]] = clones[i];
    }
    torch::jit::Stack stack;
    call.call.run(slots, stack);
    for (size_t i = 0; i < out.size(); ++i) {
      const Source& source = call.results[i];
      if (source.kind == Source::Kind::kReturn) {
        out[i] = stack.at(source.index).toTensor();
      } else if (source.kind == Source::Kind::kElement) {
        out[i] = stack.at(source.index).toList().get(source.element).toTensor();
      } else {
        for (size_t k = 0; k < clones.size(); ++k) {
          if (call.cloned[k] == source.index) out[i] = clones[k];
        }
      }
    }
  }

  void operator()(RowIn in, RowOut out) const {
    if (!referee) return once(in, out, nullptr);
    try {
      once(in, out, misreads_f64(call.call.op.schema()) ? &own : nullptr);
    } catch (
        const c10::Error&) {  // the operator knows no f64, or mixes it with a dtype that is written in its arguments
      once(in, out, &own);
    }
    for (size_t i = 0; i < out.size(); ++i) out[i] = out[i].to(held[num_operands + i]);
  }
};

Result<RowRun> prepare_opaque(const Graph& graph, const Op& op, const std::shared_ptr<const CallTable>& calls,
                              const CallOptions& options) {
  if (calls == nullptr || op.call >= calls->calls.size()) {
    return Status(Code::k_internal, "opaque op " + op.s(AttrKey::k_aten) + " has no call record");
  }
  const OpaqueCall& call = calls->calls[op.call];
  if (call.results.size() != op.results.size())
    return Status(Code::k_internal, "opaque op " + op.s(AttrKey::k_aten) + " lost a result");
  OpaqueRun run{calls, call, {}, {}, op.operands.size(), options.float_dtype.has_value()};
  for (const auto* values : {&op.operands, &op.results}) {
    for (const ValueId value : *values) {
      const DType dtype = value == kNone ? DType::k_f32 : graph.type(value).dtype;
      run.own.push_back(scalar_type_of(dtype));
      run.held.push_back(scalar_type_of(held_dtype(dtype, options)));
    }
  }
  return RowRun(std::move(run));
}

}  // namespace

DType held_dtype(DType dtype, const CallOptions& options) {
  return options.float_dtype && is_float(dtype) ? *options.float_dtype : dtype;
}

std::optional<at::Scalar> RowSite::number(size_t operand) const {
  ValueId value = op.operands.at(operand);
  while (value != kNone && graph.values[value].producer != kNone) {
    const Op& producer = graph.ops[graph.values[value].producer];
    if (producer.code == OpCode::k_full) {
      const DType dtype = graph.type(value).dtype;
      if (is_float(dtype)) return at::Scalar(producer.d(AttrKey::k_value_d));
      if (is_int(dtype)) return at::Scalar(producer.i(AttrKey::k_value_i));
      return std::nullopt;
    }
    const bool keeps_values = producer.code == OpCode::k_expand || producer.code == OpCode::k_reshape;
    if (!keeps_values) return std::nullopt;
    value = producer.operands[0];
  }
  return std::nullopt;
}

at::ScalarType RowSite::dtype() const { return scalar_type_of(results.at(0).dtype); }

RowRun make_row_run(const RowSite& site) {
  if (RowRun run = make_scalar_run(site)) return run;
  if (RowRun run = make_tensor_run(site)) return run;
  return make_composite_run(site);
}

Result<RowRun> prepare_op(const Graph& graph, OpId id, const std::shared_ptr<const CallTable>& calls,
                          const CallOptions& options) {
  const Op& op = graph.ops[id];
  if (op.code == OpCode::kOpaque) return prepare_opaque(graph, op, calls, options);
  RowSite site{graph, op, {}, at_device(options.device)};
  for (const ValueId result : op.results) {
    site.results.push_back(graph.type(result));
    site.results.back().dtype = held_dtype(site.results.back().dtype, options);
  }
  RowRun run;
  KRN_TRY(catch_torch([&] { run = make_row_run(site); }));
  if (run) return run;
  return Status(Code::k_unsupported, Message{"LibTorch has no call for row " +
                                                 std::to_string(static_cast<int>(op.code)) + " with these attributes",
                                             op.origin.str(),
                                             {},
                                             {}});
}

}  // namespace keirin
