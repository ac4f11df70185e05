// SPDX-License-Identifier: Apache-2.0
//
// Prepared ops one by one, and replay: the steps, the last uses, and who owns what when a call ends.
#include "core/eager/rows/graph_calls.h"

#include "core/base/end_flag.h"
#include "core/eager/at_tensor.h"
#include "core/eager/rows/laid_out.h"
#include "core/eager/rows/prepared_op.h"

namespace keirin {
namespace {

class PreparedOp final : public PreparedCall {
 public:
  PreparedOp(RowRun run, size_t num_results, std::string origin, int64_t constant_bytes)
      : run_(std::move(run)), num_results_(num_results), origin_(std::move(origin)), constant_bytes_(constant_bytes) {}

  int64_t constant_bytes() const override { return constant_bytes_; }

  Status run(std::span<const TensorRef> operands, std::vector<TensorRef>& results) const override {
    Status status = catch_torch([&] {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      const at::NoGradGuard no_grad;
      std::vector<at::Tensor> in, out(num_results_);
      std::vector<const at::Tensor*> pointers;
      in.reserve(operands.size());
      for (const TensorRef& operand : operands) pointers.push_back(&in.emplace_back(to_at(operand)));
      run_(pointers, out);
      results.clear();
      for (at::Tensor& tensor : out) results.push_back(from_at(std::move(tensor)));
    });
    return status.ok() ? status : std::move(status).at(origin_);
  }

 private:
  RowRun run_;
  size_t num_results_;
  std::string origin_;
  int64_t constant_bytes_;
};

bool is_move(OpCode code) {
  switch (code) {
    case OpCode::k_expand:
    case OpCode::k_reshape:
    case OpCode::k_permute:
    case OpCode::k_slice:
    case OpCode::k_relayout:
    case OpCode::k_cast:
      return true;  // may hand on its operand
    default:
      return false;
  }
}

// Whether a value may share storage with an input, a constant or a tensor that replay keeps.
bool may_be_borrowed(const Graph& graph, ValueId value) {
  while (graph.values[value].kind == ValueKind::kResult) {
    const Op& op = graph.ops[graph.values[value].producer];
    // An opaque operator may return an operand or a view of one.
    if (op.code == OpCode::kOpaque || op.code == OpCode::k_full || op.code == OpCode::k_iota) return true;
    const bool no_axes =
        op.find(AttrKey::k_dims) != nullptr && op.ints(AttrKey::k_dims).empty();  // a reduction of nothing
    if (!is_move(op.code) && !no_axes) return false;
    value = op.operands[0];
  }
  return true;
}

}  // namespace

GraphCalls::GraphCalls(std::shared_ptr<const CallTable> calls, CallOptions options)
    : calls_(std::move(calls)), options_(options) {}

Result<std::unique_ptr<PreparedCall>> GraphCalls::prepare(const Graph& graph, OpId op, const std::vector<TensorRef>& constants) const {
  LaidOut laid_out;
  KRN_TRY(catch_torch([&] { laid_out = lay_out_weight(graph, op, constants, options_); }));
  if (!laid_out.run) {
    KRN_TRY_LET(laid_out.run, prepare_op(graph, op, calls_, options_));
  }
  return std::unique_ptr<PreparedCall>(
      std::make_unique<PreparedOp>(std::move(laid_out.run), graph.ops[op].results.size(), graph.ops[op].origin.str(), laid_out.bytes));
}

struct EagerGraph::Impl {
  struct Step {
    RowRun run;
    ValueIds operands, results;
    std::vector<ValueId> dead;  // values without a reader after this step
    std::string origin;
  };
  struct Out {
    ValueId value = kNone, updates = kNone, alias_of = kNone;
    bool may_be_borrowed = false;
  };

  std::vector<at::Tensor> execute(const std::vector<TensorRef>& given, std::string* at) const;
  at::Tensor original(ValueId value, const std::vector<TensorRef>& given) const;

  CallOptions options;
  std::vector<Value> sources;  // inputs and constants of the Graph, by value
  std::vector<ValueId> source_ids;
  std::vector<at::Tensor> constants;      // by index, in the held dtype
  std::vector<at::Tensor> own_constants;  // as given: what an update writes
  std::vector<Step> steps;
  std::vector<Out> outputs;
  size_t num_values = 0;
};

at::Tensor EagerGraph::Impl::original(ValueId value, const std::vector<TensorRef>& given) const {
  for (size_t i = 0; i < source_ids.size(); ++i) {
    if (source_ids[i] != value) continue;
    const Value& source = sources[i];
    return source.kind == ValueKind::kInput ? to_at(given.at(source.index)) : own_constants.at(source.index);
  }
  return {};
}

std::vector<at::Tensor> EagerGraph::Impl::execute(const std::vector<TensorRef>& given, std::string* at) const {
  std::vector<at::Tensor> slots(num_values);
  for (size_t i = 0; i < source_ids.size(); ++i) {
    const Value& source = sources[i];
    if (source.kind == ValueKind::kConstant) {
      slots[source_ids[i]] = constants[source.index];
      continue;
    }
    at::Tensor tensor = source.kind == ValueKind::kState ? own_constants[source.index] : to_at(given.at(source.index));
    if (options.float_dtype && tensor.is_floating_point()) tensor = tensor.to(scalar_type_of(*options.float_dtype));
    slots[source_ids[i]] = std::move(tensor);
  }
  static const at::Tensor absent;
  std::vector<const at::Tensor*> in;
  std::vector<at::Tensor> out;
  for (const Step& step : steps) {
    TORCH_CHECK(!is_to_end(), "stopped on request");
    *at = step.origin;
    in.clear();
    for (const ValueId operand : step.operands) in.push_back(operand == kNone ? &absent : &slots[operand]);
    out.assign(step.results.size(), at::Tensor());
    step.run(in, out);
    for (size_t i = 0; i < out.size(); ++i) slots[step.results[i]] = std::move(out[i]);
    for (const ValueId value : step.dead) slots[value] = at::Tensor();
  }
  std::vector<at::Tensor> results;
  results.reserve(outputs.size());
  for (const Out& output : outputs) results.push_back(slots[output.value]);
  return results;
}

EagerGraph::EagerGraph(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EagerGraph::~EagerGraph() = default;

Result<std::unique_ptr<EagerGraph>> EagerGraph::make(const Graph& graph, std::shared_ptr<const CallTable> calls,
                                                       const std::vector<TensorRef>& constants, CallOptions options) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->num_values = graph.values.size();
  impl->constants.resize(constants.size());
  impl->own_constants.resize(constants.size());
  for (ValueId value = 0; value < graph.values.size(); ++value) {
    const Value& source = graph.values[value];
    if (source.kind == ValueKind::kResult) continue;
    impl->sources.push_back(source);
    impl->source_ids.push_back(value);
    if (source.kind == ValueKind::kInput) continue;
    if (source.index >= constants.size() || constants[source.index] == nullptr) {
      return Status(Code::k_invalid_input,
                    "constant " + std::to_string(source.index) + " (" + source.name.str() + ") has no value");
    }
    KRN_TRY(catch_torch([&] {
      const at::Tensor tensor = to_at(constants[source.index]);
      impl->own_constants[source.index] = tensor;
      if (source.kind == ValueKind::kState) return;  // read anew by every call
      const bool casts = options.float_dtype && tensor.is_floating_point();
      impl->constants[source.index] = casts ? tensor.to(scalar_type_of(*options.float_dtype)) : tensor;
    }));
  }
  std::vector<uint8_t> live(graph.values.size(), 0);
  for (const Output& output : graph.outputs) {
    live[output.value] = 1;
    impl->outputs.push_back({output.value, output.updates, output.alias_of, may_be_borrowed(graph, output.value)});
  }
  impl->steps.resize(graph.ops.size());
  for (OpId id = static_cast<OpId>(graph.ops.size()); id-- > 0;) {
    const Op& op = graph.ops[id];
    Impl::Step& step = impl->steps[id];
    auto run = prepare_op(graph, id, calls, options);
    if (!run.ok()) return std::move(run).status().at(op.origin.str());
    step = {std::move(*run), op.operands, op.results, {}, op.origin.str()};
    for (const auto* values : {&op.results, &op.operands}) {
      for (const ValueId value : *values) {
        if (value != kNone && !live[value]) {
          live[value] = 1;
          step.dead.push_back(value);
        }
      }
    }
  }
  return std::unique_ptr<EagerGraph>(new EagerGraph(std::move(impl)));
}

Result<std::vector<TensorRef>> EagerGraph::evaluate(const std::vector<TensorRef>& inputs) const {
  std::vector<TensorRef> results;
  std::string at;
  Status status = catch_torch([&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::NoGradGuard no_grad;
    for (at::Tensor& tensor : impl_->execute(inputs, &at)) results.push_back(from_at(std::move(tensor)));
  });
  if (!status.ok()) return std::move(status).at(at);
  return results;
}

Result<std::vector<TensorRef>> EagerGraph::run(const std::vector<TensorRef>& inputs) const {
  std::vector<TensorRef> returned;
  std::string at;
  Status status = catch_torch([&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> values = impl_->execute(inputs, &at);
    at = "the outputs";
    const auto& outputs = impl_->outputs;
    // First every value that could change under an update, or belongs to somebody else, gets storage of its own.
    for (size_t i = 0; i < outputs.size(); ++i) {
      const bool is_user = outputs[i].updates == kNone;
      bool shared = outputs[i].may_be_borrowed && (!is_user || outputs[i].alias_of == kNone);
      for (size_t k = 0; k < i && is_user && outputs[i].alias_of == kNone; ++k) shared = shared || values[i].is_alias_of(values[k]);
      if (shared) values[i] = values[i].clone();
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].updates != kNone) impl_->original(outputs[i].updates, inputs).copy_(values[i]);
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].updates != kNone) continue;
      returned.push_back(
          from_at(outputs[i].alias_of == kNone ? std::move(values[i]) : impl_->original(outputs[i].alias_of, inputs)));
    }
  });
  if (!status.ok()) return std::move(status).at(at);
  return returned;
}

Result<std::vector<TensorRef>> evaluate(const Graph& graph, std::shared_ptr<const CallTable> calls,
                                        const std::vector<TensorRef>& inputs, const std::vector<TensorRef>& constants,
                                        CallOptions options) {
  KRN_TRY_LET(const auto replay, EagerGraph::make(graph, std::move(calls), constants, options));
  return replay->evaluate(inputs);
}

}  // namespace keirin
