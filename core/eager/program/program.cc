// SPDX-License-Identifier: Apache-2.0
//
// A frame with its weights bound, its inputs checked and its mutation outputs written back.
#include "core/eager/program/program.h"

#include <algorithm>

#include "core/eager/at_tensor.h"
#include "core/eager/program/frame.h"
#include "core/eager/program/observer.h"
#include "core/eager/program/referee.h"
#include "core/eager/tensor_services.h"

namespace keirin {

using c10::IValue;
using InKind = pt2::InputSpec::Kind;
using OutKind = pt2::OutputSpec::Kind;

struct EagerProgram::Impl {
  explicit Impl(const pt2::Program& program) : rules(program) {}

  enum class Source : uint8_t { kWeight, kTensor, kNumber, kConstant };
  struct Input {
    Source source = Source::kWeight;
    size_t user = 0;    // flat position, for the user's
    uint32_t weight = 0;  // position in the table
    at::Tensor tensor;  // kWeight: also what a mutation output writes
  };
  struct Output {
    bool is_user = true;
    size_t target = 0;  // graph input that is written, if it is not the user's
  };

  Status bind_inputs(const pt2::Program& program, const WeightTable& weights);
  Status bind_outputs(const pt2::Program& program);
  Status check(const std::vector<TensorRef>& given) const;
  // One call on `sources`, a value for each graph input in order; operators are called, or handed to `runner`.
  std::vector<IValue> sources_of(const std::vector<TensorRef>& given) const;
  std::vector<at::Tensor> call(std::vector<IValue> sources, const Running& running) const;

  InputRules rules;
  Device device;
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  size_t num_user_outputs = 0;
  std::unique_ptr<Frame> frame;
  bool writes = false;
  std::string may_write;
};

Status EagerProgram::Impl::bind_inputs(const pt2::Program& program, const WeightTable& weights) {
  size_t user = 0;
  for (const pt2::InputSpec& spec : program.inputs) {
    Input input;
    if (spec.kind == InKind::kUserInput) {
      if (spec.arg.is<pt2::TensorArg>() || !spec.arg.names().empty()) {
        input.source = spec.arg.is<pt2::TensorArg>() ? Source::kTensor : Source::kNumber;
        input.user = user++;
      } else {
        input.source = Source::kConstant;
      }
    } else if (spec.kind == InKind::kConstantInput) {
      input.source = Source::kConstant;
    } else {
      const auto position = weights.find(spec.target);
      if (!position) {
        return Status(Code::k_invalid_input, Message{"weight \"" + spec.target + "\" has no value",
                                                     "model \"" + program.name + "\"",
                                                     {},
                                                     "supply the weights before the model runs"});
      }
      input.weight = *position;
      input.tensor = to_at(weights[*position].tensor);
    }
    inputs.push_back(std::move(input));
  }
  return {};
}

Status EagerProgram::Impl::bind_outputs(const pt2::Program& program) {
  for (const pt2::OutputSpec& spec : program.outputs) {
    Output output;
    output.is_user = !spec.is_mutation();
    if (output.is_user) {
      ++num_user_outputs;
    } else {
      writes = true;
      output.target = program.inputs.size();
      for (size_t i = 0; i < program.inputs.size(); ++i) {
        const pt2::InputSpec& input = program.inputs[i];
        const bool by_name = spec.kind == OutKind::kUserInputMutation
                                 ? input.kind == InKind::kUserInput && input.arg.names() == std::vector{spec.target}
                                 : input.kind != InKind::kUserInput && input.target == spec.target;
        if (by_name) output.target = i;
      }
      if (output.target == program.inputs.size()) {
        return Status(Code::k_corrupt, "an output writes \"" + spec.target + "\", which is not an input");
      }
    }
    outputs.push_back(output);
  }
  return {};
}

Status EagerProgram::Impl::check(const std::vector<TensorRef>& given) const {
  std::vector<InputView> views;
  views.reserve(given.size());
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i] == nullptr) return Status(Code::k_invalid_input, "input " + std::to_string(i) + " is not a tensor");
    InputView view{given[i]->dtype(), given[i]->sizes(), given[i]->rank(), 0};
    if (i < rules.names().size() && rules.is_number(i)) {
      if (view.dtype == DType::k_i64 && view.rank == 0) view.number = *static_cast<const int64_t*>(given[i]->data());
    } else if (given[i]->device() != device && !(view.rank == 0 && given[i]->device().kind == Device::kCpu)) {
      return Status(Code::k_invalid_input,
                    Message{"input " + std::to_string(i) + " is on " + device_name(given[i]->device()) +
                                ", the model is on " + device_name(device),
                            {},
                            "nothing was run",
                            "move the input, or open the model on " + device_name(given[i]->device())});
    }
    views.push_back(view);
  }
  return rules.check(views);
}

std::vector<IValue> EagerProgram::Impl::sources_of(const std::vector<TensorRef>& given) const {
  std::vector<IValue> sources;
  sources.reserve(inputs.size() + 64);
  for (const Input& input : inputs) {
    switch (input.source) {
      case Source::kWeight:
        sources.emplace_back(input.tensor);
        break;
      case Source::kTensor:
        sources.emplace_back(to_at(given[input.user]));
        break;
      case Source::kNumber:
        sources.emplace_back(*static_cast<const int64_t*>(given[input.user]->data()));
        break;
      case Source::kConstant:
        sources.emplace_back();
        break;
    }
  }
  return sources;
}

std::vector<at::Tensor> EagerProgram::Impl::call(std::vector<IValue> sources, const Running& running) const {
  std::vector<at::Tensor> targets;  // of the mutation outputs
  for (const Output& output : outputs)
    if (!output.is_user) targets.push_back(sources[output.target].toTensor());
  std::vector<IValue> results = frame->run(std::move(sources), running);
  *running.at = "the outputs";
  std::vector<std::pair<at::Tensor, at::Tensor>> updates;
  for (size_t i = 0; i < outputs.size(); ++i)
    if (!outputs[i].is_user) updates.emplace_back(targets[updates.size()], results[i].toTensor());
  for (auto& [to, value] : updates) {  // a value may be a target that another update overwrites, or a view of one
    const bool overwritten = !value.is_same(to) && std::any_of(updates.begin(), updates.end(), [&](const auto& update) {
      return value.is_alias_of(update.first);
    });
    if (overwritten) value = value.clone();
  }
  for (const auto& [to, value] : updates) to.copy_(value);
  std::vector<at::Tensor> returned;
  returned.reserve(num_user_outputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].is_user) continue;
    IValue& value = results[i];
    if (value.isTensor()) {
      returned.push_back(std::move(value).toTensor());
    } else if (value.isScalar()) {
      returned.push_back(c10::scalar_to_tensor(value.toScalar()));
    } else {
      returned.emplace_back();
    }
  }
  return returned;
}

EagerProgram::EagerProgram(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EagerProgram::~EagerProgram() = default;

Result<std::unique_ptr<EagerProgram>> EagerProgram::make(const pt2::Program& program, const WeightTable& weights,
                                                         Device device, const pt2::Segments* segments) {
  auto impl = std::make_unique<Impl>(program);
  impl->device = device;
  KRN_TRY(impl->bind_inputs(program, weights));
  KRN_TRY(impl->bind_outputs(program));
  Status made;
  KRN_TRY(catch_torch([&] {
    std::set<std::string> written_after;  // by the outputs that are written back
    for (const Impl::Output& output : impl->outputs)
      if (!output.is_user)
        for (std::string& name : program.inputs[output.target].arg.names()) written_after.insert(std::move(name));
    auto frame = Frame::make(program.graph, make_device_map(program.graph, device), written_after, segments);
    if (frame.ok()) {
      impl->frame = std::move(*frame);
    } else {
      made = std::move(frame).status();
    }
  }));
  if (!made.ok()) return std::move(made).instead("nothing was loaded");
  impl->writes = impl->writes || impl->frame->writes();
  const std::vector<std::string>& written = impl->frame->written_inputs();
  for (size_t i = 0; i < program.inputs.size() && impl->may_write.empty(); ++i)
    for (const std::string& name : program.inputs[i].arg.names())
      if (std::find(written.begin(), written.end(), name) != written.end())
        impl->may_write = program.inputs[i].target.empty() ? name : program.inputs[i].target;
  return std::unique_ptr<EagerProgram>(new EagerProgram(std::move(impl)));
}

namespace {

// What every call of operators stands under: gradients are nobody's.
struct BelowAutograd {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::NoGradGuard no_grad;
};

std::vector<TensorRef> refs(std::vector<at::Tensor> tensors) {
  std::vector<TensorRef> out;
  out.reserve(tensors.size());
  for (at::Tensor& tensor : tensors) out.push_back(from_at(std::move(tensor)));
  return out;
}

}  // namespace

Result<std::vector<TensorRef>> EagerProgram::run(const std::vector<TensorRef>& flat_inputs, SegmentRunner* segments) const {
  KRN_TRY(impl_->check(flat_inputs));
  std::vector<TensorRef> returned;
  std::string at;
  Status failed;
  Status status = catch_torch([&] {
    const BelowAutograd scope;
    try {
      returned = refs(impl_->call(impl_->sources_of(flat_inputs), {&at, nullptr, segments}));
    } catch (SegmentFailed& segment) {
      failed = std::move(segment.status);
    }
  });
  if (!failed.ok()) return failed;
  if (!status.ok()) return std::move(status).at(at);
  return returned;
}

Result<std::vector<TensorRef>> EagerProgram::observe(const std::vector<TensorRef>& flat_inputs, ObservedRun& seen, bool products) const {
  KRN_TRY(impl_->check(flat_inputs));
  KRN_TRY_LET(const RandomState before, random_state(impl_->device));
  std::vector<TensorRef> returned;
  std::string at;
  bool may_draw = false;
  Status status = catch_torch([&] {
    const BelowAutograd scope;
    std::vector<IValue> sources = impl_->sources_of(flat_inputs);
    for (IValue& source : sources)  // the caller's own keep their sizes and strides, whatever the model does to its inputs'
      if (source.isTensor()) source = source.toTensor().alias();
    Observer observer(seen, products ? tf32_settings(impl_->device) : Tf32Settings());
    for (size_t i = 0; i < sources.size(); ++i) {
      const Impl::Input& input = impl_->inputs[i];
      if (input.source == Impl::Source::kWeight) observer.add_weight(sources[i].toTensor(), input.weight);
      if (input.source == Impl::Source::kTensor) observer.add_input(sources[i].toTensor(), input.user);
    }
    for (const Impl::Output& output : impl_->outputs)
      if (!output.is_user) observer.note_write(sources[output.target].toTensor());
    try {
      returned = refs(impl_->call(std::move(sources), {&at, &observer, nullptr}));
    } catch (...) {
      observer.put_back();
      throw;
    }
    observer.finish();
    may_draw = observer.may_draw();
  });
  KRN_TRY_LET(const RandomState after, random_state(impl_->device));
  seen.draws_random = may_draw && before != after;  // another thread may have drawn meanwhile, and keeps what it drew
  if (seen.draws_random) KRN_TRY(set_random_state(impl_->device, before));
  if (!status.ok()) return std::move(status).at(at);
  return returned;
}

namespace {

class NodeCounter final : public OperatorRunner {
 public:
  explicit NodeCounter(const uint64_t* count) : count_(count) { taken_.reserve(4096); }
  void begin() { last_ = now(); }
  void run(const OperatorSite& site, torch::jit::Stack& stack) override {
    site.call(stack);
    const uint64_t after = now();
    taken_.emplace_back(&site, after - last_);
    last_ = now();
  }
  std::map<std::string, uint64_t> by_node() const {
    std::map<std::string, uint64_t> sums;
    for (const auto& [site, taken] : taken_) sums[site->node] += taken;
    return sums;
  }

 private:
  uint64_t now() const { return __atomic_load_n(count_, __ATOMIC_RELAXED); }

  const uint64_t* count_;
  uint64_t last_ = 0;  // the end of the node before
  std::vector<std::pair<const OperatorSite*, uint64_t>> taken_;
};

}  // namespace

Result<std::map<std::string, uint64_t>> EagerProgram::count_nodes(const std::vector<TensorRef>& flat_inputs, const uint64_t* count) const {
  KRN_TRY(impl_->check(flat_inputs));
  NodeCounter counter(count);
  std::string at;
  Status status = catch_torch([&] {
    const BelowAutograd scope;
    std::vector<IValue> sources = impl_->sources_of(flat_inputs);
    counter.begin();
    (void)impl_->call(std::move(sources), {&at, &counter, nullptr});
  });
  if (!status.ok()) return std::move(status).at(at);
  return counter.by_node();
}

Result<EagerProgram::RefereeRun> EagerProgram::referee(const std::vector<TensorRef>& flat_inputs,
                                                       const std::vector<size_t>& written_weights, int num_calls,
                                                       const Roundings& roundings, const Contents& second) const {
  KRN_TRY(impl_->check(flat_inputs));
  RefereeRun run;
  std::string at;
  Status status = catch_torch([&] {
    const BelowAutograd scope;
    std::vector<IValue> sources = impl_->sources_of(flat_inputs);
    const auto is_copied = [&](const Impl::Input& input) {
      return input.source == Impl::Source::kTensor ||
             (input.source == Impl::Source::kWeight &&
              std::binary_search(written_weights.begin(), written_weights.end(), size_t{input.weight}));
    };
    WideCopies copies;
    for (size_t i = 0; i < sources.size(); ++i)
      if (is_copied(impl_->inputs[i])) copies.add(sources[i].toTensor());
    for (size_t i = 0; i < sources.size(); ++i)
      if (is_copied(impl_->inputs[i])) sources[i] = copies.of(sources[i].toTensor());
    RefereeRunner runner(impl_->device, roundings);
    const auto begin_second = [&](Impl::Source source, size_t number, const TensorRef& content) {
      for (size_t i = 0; i < sources.size(); ++i) {
        const Impl::Input& input = impl_->inputs[i];
        if (input.source == source && (source == Impl::Source::kWeight ? size_t{input.weight} : size_t{input.user}) == number)
          sources[i].toTensor().copy_(to_at(content));
      }
    };
    for (int call = 0; call < num_calls; ++call) {
      if (call == 1) {
        for (const auto& [input, content] : second.inputs) begin_second(Impl::Source::kTensor, input, content);
        for (const auto& [weight, content] : second.weights) begin_second(Impl::Source::kWeight, weight, content);
      }
      std::vector<at::Tensor> outputs = impl_->call(sources, {&at, &runner, nullptr});
      for (at::Tensor& output : outputs)
        if (output.defined()) output = wide(output).clone();  // the next call may write it
      run.outputs.push_back(refs(std::move(outputs)));
      const bool again = call + 1 < num_calls;  // the next call may write them, and nobody else has them
      const auto kept = [&](const at::Tensor& tensor) { return from_at(again ? tensor.clone() : tensor); };
      std::vector<TensorRef> inputs(flat_inputs.size()), weights(written_weights.size());
      for (size_t i = 0; i < sources.size(); ++i) {
        const Impl::Input& input = impl_->inputs[i];
        if (input.source == Impl::Source::kTensor) inputs[input.user] = kept(sources[i].toTensor());
        if (input.source == Impl::Source::kNumber) inputs[input.user] = flat_inputs[input.user];
        const auto position = std::lower_bound(written_weights.begin(), written_weights.end(), size_t{input.weight});
        if (input.source == Impl::Source::kWeight && position != written_weights.end() && *position == input.weight)
          weights[static_cast<size_t>(position - written_weights.begin())] = kept(sources[i].toTensor());
      }
      run.inputs.push_back(std::move(inputs));
      run.weights.push_back(std::move(weights));
    }
    run.own_dtype = runner.own_dtype();
  });
  if (!status.ok()) return std::move(status).at(at);
  return run;
}

const InputRules& EagerProgram::rules() const { return impl_->rules; }
size_t EagerProgram::num_outputs() const { return impl_->num_user_outputs; }
bool EagerProgram::writes() const { return impl_->writes; }
const std::string& EagerProgram::may_write() const { return impl_->may_write; }
const std::string& EagerProgram::may_draw() const { return impl_->frame->may_draw(); }

}  // namespace keirin
