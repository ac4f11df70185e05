// SPDX-License-Identifier: Apache-2.0
//
// A frame with its weights bound, its inputs checked and its mutation outputs written back.
#include "core/eager/program.h"

#include "core/eager/at_tensor.h"
#include "core/eager/frame.h"

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
    at::Tensor tensor;  // kWeight: also what a mutation output writes
  };
  struct Output {
    bool is_user = true;
    size_t target = 0;  // graph input that is written, if it is not the user's
  };

  Status bind_inputs(const pt2::Program& program, const WeightTable& weights);
  Status bind_outputs(const pt2::Program& program);
  Status check(const std::vector<TensorRef>& given) const;
  std::vector<TensorRef> call(const std::vector<TensorRef>& given, std::string* at) const;

  InputRules rules;
  Device device;
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  size_t num_user_outputs = 0;
  std::unique_ptr<Frame> frame;
  bool writes = false;
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
      input.tensor = to_at(weights[*position].tensor);
    }
    inputs.push_back(std::move(input));
  }
  return {};
}

Status EagerProgram::Impl::bind_outputs(const pt2::Program& program) {
  for (const pt2::OutputSpec& spec : program.outputs) {
    Output output;
    output.is_user = spec.kind == OutKind::kUserOutput || spec.kind == OutKind::kLossOutput ||
                     spec.kind == OutKind::kGradientToParameter || spec.kind == OutKind::kGradientToUserInput;
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
        return Status(Code::k_corrupt, "an output writes \"" + spec.target + "\", which is no input");
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
    if (given[i] == nullptr) return Status(Code::k_invalid_input, "input " + std::to_string(i) + " is no tensor");
    InputView view{given[i]->dtype(), given[i]->sizes(), given[i]->rank(), 0};
    if (i < rules.names().size() && rules.is_number(i)) {
      if (view.dtype == DType::k_i64 && view.rank == 0) view.number = *static_cast<const int64_t*>(given[i]->data());
    } else if (given[i]->device() != device) {
      return Status(Code::k_invalid_input,
                    Message{"input " + std::to_string(i) + " is on " + device_name(given[i]->device()) +
                                ", the model is on " + device_name(device),
                            {},
                            "nothing was run",
                            "move the input first"});
    }
    views.push_back(view);
  }
  return rules.check(views);
}

std::vector<TensorRef> EagerProgram::Impl::call(const std::vector<TensorRef>& given, std::string* at) const {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::NoGradGuard no_grad;
  std::vector<IValue> slots;
  slots.reserve(inputs.size() + 64);
  std::vector<at::Tensor> kept;  // inputs that a mutation output writes
  for (const Input& input : inputs) {
    switch (input.source) {
      case Source::kWeight:
        slots.emplace_back(input.tensor);
        break;
      case Source::kTensor:
        slots.emplace_back(to_at(given[input.user]));
        break;
      case Source::kNumber:
        slots.emplace_back(*static_cast<const int64_t*>(given[input.user]->data()));
        break;
      case Source::kConstant:
        slots.emplace_back();
        break;
    }
  }
  std::vector<IValue> results = frame->run(std::move(slots), at);
  *at = "the outputs";
  std::vector<std::pair<at::Tensor, at::Tensor>> updates;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].is_user) continue;
    const Input& target = inputs[outputs[i].target];
    at::Tensor to = target.source == Source::kWeight ? target.tensor : to_at(given[target.user]);
    updates.emplace_back(std::move(to), results[i].toTensor());
  }
  for (auto& [to, value] : updates) {  // a value may be a view of a target that another update overwrites
    for (const auto& [other, unused] : updates) {
      if (!value.is_same(other) && value.is_alias_of(other)) {
        value = value.clone();
        break;
      }
    }
  }
  for (const auto& [to, value] : updates) to.copy_(value);
  std::vector<TensorRef> returned;
  returned.reserve(num_user_outputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].is_user) continue;
    const IValue& value = results[i];
    if (value.isTensor()) {
      returned.push_back(from_at(value.toTensor()));
    } else if (value.isScalar()) {
      returned.push_back(from_at(c10::scalar_to_tensor(value.toScalar())));
    } else {
      returned.push_back(nullptr);
    }
  }
  return returned;
}

EagerProgram::EagerProgram(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EagerProgram::~EagerProgram() = default;

Result<std::unique_ptr<EagerProgram>> EagerProgram::make(const pt2::Program& program, const WeightTable& weights,
                                                         Device device) {
  auto impl = std::make_unique<Impl>(program);
  impl->device = device;
  KRN_TRY(impl->bind_inputs(program, weights));
  KRN_TRY(impl->bind_outputs(program));
  Status made;
  KRN_TRY(catch_torch([&] {
    auto frame = Frame::make(program.graph, make_device_map(program.graph, device));
    if (frame.ok()) {
      impl->frame = std::move(*frame);
    } else {
      made = std::move(frame).status();
    }
  }));
  if (!made.ok()) return std::move(made).instead("nothing was loaded");
  impl->writes = impl->writes || impl->frame->writes();
  return std::unique_ptr<EagerProgram>(new EagerProgram(std::move(impl)));
}

Result<std::vector<TensorRef>> EagerProgram::run(const std::vector<TensorRef>& flat_inputs) const {
  KRN_TRY(impl_->check(flat_inputs));
  std::vector<TensorRef> returned;
  std::string at;
  Status status = catch_torch([&] { returned = impl_->call(flat_inputs, &at); });
  if (!status.ok()) return std::move(status).at(at);
  return returned;
}

const InputRules& EagerProgram::rules() const { return impl_->rules; }
size_t EagerProgram::num_outputs() const { return impl_->num_user_outputs; }
bool EagerProgram::writes() const { return impl_->writes; }

}  // namespace keirin
