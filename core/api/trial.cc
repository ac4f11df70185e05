// SPDX-License-Identifier: Apache-2.0
#include "core/api/trial.h"

#include <algorithm>
#include <utility>

#include "core/base/overlap.h"
#include "core/eager/program/library_settings.h"
#include "core/tune/elements.h"

namespace keirin {
namespace {

using Tensors = std::vector<TensorRef>;

// A view of it can be made of it.
bool lies_inside(const Tensor& part, const Tensor& whole) { return part.dtype() == whole.dtype() && covers(whole, part); }

OutputView view_in(size_t output, OutputView::Of of, size_t source, const Tensor& part, const Tensor& whole) {
  return {output, of, source, reinterpret_cast<intptr_t>(part.data()) - reinterpret_cast<intptr_t>(whole.data())};
}

}  // namespace

Sharing sharing_of(const Tensors& outputs, const Tensors& inputs, const WeightTable& weights) {
  Sharing out;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i]) continue;
    const auto note = [&](const TensorRef& other, size_t number) {
      if (other && shares_elements(*outputs[i], *other)) out.emplace_back(i, number);
    };
    for (size_t k = i + 1; k < outputs.size(); ++k) note(outputs[k], k);
    for (size_t k = 0; k < inputs.size(); ++k) note(inputs[k], outputs.size() + k);
    for (size_t k = 0; k < weights.size(); ++k) note(weights[k].tensor, outputs.size() + inputs.size() + k);
  }
  return out;
}

std::vector<OutputView> views_among(const Tensors& outputs, const Tensors& inputs, const WeightTable& weights) {
  std::vector<OutputView> views;
  const auto find = [&](size_t k) -> std::optional<OutputView> {
    const Tensor& part = *outputs[k];
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i] && lies_inside(part, *inputs[i])) return view_in(k, OutputView::Of::kInput, i, part, *inputs[i]);
    for (size_t i = 0; i < weights.size(); ++i)
      if (lies_inside(part, *weights[i].tensor)) return view_in(k, OutputView::Of::kWeight, i, part, *weights[i].tensor);
    for (size_t i = 0; i < outputs.size(); ++i)
      if (i != k && outputs[i] && lies_inside(part, *outputs[i]) && !(k < i && lies_inside(*outputs[i], part)))
        return view_in(k, OutputView::Of::kOutput, i, part, *outputs[i]);
    return std::nullopt;
  };
  for (size_t k = 0; k < outputs.size(); ++k)
    if (outputs[k])
      if (auto view = find(k)) views.push_back(std::move(*view));
  // A source that is a view itself comes before what is made of it: sources are larger, or as large and earlier.
  std::stable_sort(views.begin(), views.end(), [&](const OutputView& a, const OutputView& b) {
    const auto span = [&](const OutputView& v) {
      const auto range = byte_range(*outputs[v.output]);
      return range.second - range.first;
    };
    return span(a) > span(b);
  });
  return views;
}

OutputForms forms_of(const Tensors& outputs, const Tensors& inputs, const WeightTable& weights) {
  OutputForms forms{views_among(outputs, inputs, weights), {}};
  for (const TensorRef& output : outputs) {
    forms.specs.emplace_back();
    if (output)
      forms.specs.back() = spec_of(*output);
  }
  return forms;
}

namespace {

bool has_strides(const Tensor& tensor, const TensorSpec& spec) {
  if (tensor.rank() != static_cast<int64_t>(spec.sizes.size())) return true;  // wrong in another way, which is the judge's to say
  for (int64_t d = 0; d < tensor.rank(); ++d)
    if (tensor.sizes()[d] > 1 && tensor.strides()[d] != spec.strides[d]) return false;
  return true;
}

// The same elements under other strides.
Result<TensorRef> laid_out(const TensorRef& tensor, const TensorSpec& spec, TensorServices& services) {
  KRN_TRY_LET(TensorRef to, services.allocate(spec));
  KRN_TRY(services.copy(to, tensor));
  return to;
}

}  // namespace

CallFn with_forms(CallFn call, const OutputForms& forms, bool may_differ, TensorServices& services, const WeightTable& weights) {
  if (!call || (forms.views.empty() && !may_differ)) return call;
  return [call = std::move(call), forms, &services, &weights](const Tensors& inputs) -> Result<Tensors> {
    KRN_TRY_LET(Tensors outputs, call(inputs));
    for (size_t i = 0; i < outputs.size() && i < forms.specs.size(); ++i)
      if (outputs[i] && !has_strides(*outputs[i], forms.specs[i])) {
        KRN_TRY_LET(outputs[i], laid_out(outputs[i], forms.specs[i], services));
      }
    for (const OutputView& view : forms.views) {
      const TensorRef& source = view.of == OutputView::Of::kInput    ? inputs.at(view.source)
                                : view.of == OutputView::Of::kWeight ? weights[view.source].tensor
                                                                     : outputs.at(view.source);
      KRN_TRY_LET(outputs.at(view.output), services.view(source, forms.specs[view.output], view.byte_offset));
    }
    return outputs;
  };
}

namespace {

// Whether what a call writes, an input or a weight of this index, may be a position.
bool may_be_position(const Tensor& tensor, ValueKind kind, size_t index, const Graph* graph) {
  constexpr int64_t kMostBytes = 1024;  // a few for each row of a batch; a mask or a map of ids is longer
  if (tensor.storage_bytes() > kMostBytes) return false;
  if (!graph) return is_int(tensor.dtype());
  const auto is_it = [&](const Value& v) { return v.kind == kind && v.index == index; };
  const auto value = std::find_if(graph->values.begin(), graph->values.end(), is_it) - graph->values.begin();
  std::vector<bool> follows(graph->values.size() + 1);
  follows[static_cast<size_t>(value)] = true;
  bool has_effects = false, makes_integers = is_int(tensor.dtype());
  for (const Op& op : graph->ops) {
    const auto reads = [&](ValueId v) { return v != kNone && follows[v]; };
    if (std::none_of(op.operands.begin(), op.operands.end(), reads)) continue;
    has_effects |= op.effects;
    for (const ValueId result : op.results) {
      follows[result] = true;
      makes_integers |= is_int(graph->values[result].type.dtype);
    }
  }
  // Beyond the next content of its own storage: nothing but that depends on a count that is only counted on.
  const auto depends = [&](const Output& output) { return follows[output.value] && output.updates != static_cast<ValueId>(value); };
  return makes_integers && (has_effects || std::any_of(graph->outputs.begin(), graph->outputs.end(), depends));
}

}  // namespace

Status Trials::save(const Tensors& inputs, const Graph* graph) {
  TensorServices& services = s_.runtime.tensors();
  for (const size_t i : seen_.written_weights) {
    KRN_TRY_LET(TensorRef copy, services.clone(s_.weights[i].tensor));
    if (may_be_position(*copy, ValueKind::kState, i, graph)) positions_.push_back({state_.size(), copy, {}});
    state_.emplace_back(s_.weights[i].tensor, std::move(copy));
  }
  for (const size_t i : seen_.written_inputs)
    if (may_be_position(*inputs.at(i), ValueKind::kInput, i, graph)) {
      KRN_TRY_LET(TensorRef copy, services.clone(inputs[i]));
      input_positions_.push_back({i, std::move(copy), {}});
    }
  if (seen_.draws_random) {
    KRN_TRY_LET(generators_, random_state(s_.device));
  }
  return {};
}

Status Trials::restore() {
  for (const auto& [tensor, content] : state_) KRN_TRY(s_.runtime.tensors().copy(tensor, content));
  return generators_ ? set_random_state(s_.device, *generators_) : Status();
}

Status Trials::put_back_positions(const Tensors& own) const { return put_positions(own, &Position::first); }

Status Trials::put_positions(const Tensors& own, TensorRef Position::*content) const {
  TensorServices& services = s_.runtime.tensors();
  for (const Position& each : positions_)
    if (each.*content) KRN_TRY(services.copy(state_[each.number].first, each.*content));
  for (const Position& each : input_positions_)
    if (each.*content) KRN_TRY(services.copy(own.at(each.number), each.*content));
  return {};
}

namespace {

// As far in front of `before` as `after` is behind it; `before` itself where that is below 0, which is not a position.
Result<TensorRef> step_in_front(const TensorRef& before, const TensorRef& after, TensorServices& services) {
  KRN_TRY_LET(std::vector<double> values, read_values(before, services));
  KRN_TRY_LET(const std::vector<double> behind, read_values(after, services));
  for (size_t i = 0; i < values.size(); ++i) values[i] -= behind[i] - values[i];
  if (std::any_of(values.begin(), values.end(), [](double value) { return value < 0; })) return before;
  TensorSpec spec = spec_of(*before);
  spec.device = {};
  KRN_TRY_LET(const TensorRef out, services.allocate(spec));
  each_element(*out, [&](int64_t i, void* at) { store_element(spec.dtype, at, values[static_cast<size_t>(i)]); });
  return services.to_device(out, before->device());
}

}  // namespace

Status Trials::look_at_positions(const Tensors& inputs) {
  if (std::exchange(looked_, true) || (positions_.empty() && input_positions_.empty())) return {};
  TensorServices& services = s_.runtime.tensors();
  KRN_TRY_LET(const Tensors own, own_copies(inputs));
  KRN_TRY(s_.eager->run(own).status());
  for (Position& each : positions_) {
    KRN_TRY_LET(each.second, step_in_front(each.first, state_[each.number].first, services));
  }
  for (Position& each : input_positions_) {
    KRN_TRY_LET(each.second, step_in_front(each.first, own[each.number], services));
  }
  return restore();
}

Result<Tensors> Trials::own_copies(const Tensors& inputs) {
  Tensors own = inputs;
  for (const size_t i : seen_.written_inputs) {
    KRN_TRY_LET(own.at(i), s_.runtime.tensors().clone(inputs.at(i)));
  }
  return own;
}

Result<Trial> Trials::run(const CallFn& call, const Tensors& inputs, Tensors* copies) {
  TensorServices& services = s_.runtime.tensors();
  if (num_calls() > 1) KRN_TRY(look_at_positions(inputs));
  Trial trial;
  Tensors own = copies ? std::exchange(*copies, {}) : Tensors();  // of all: what must not be written may be written
  own.resize(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!own[i]) {
      KRN_TRY_LET(own[i], services.clone(inputs[i]));
    }
  bool held = false;  // an output is a view of an input
  const auto body = [&]() -> Status {
    for (int k = 0; k < num_calls(); ++k) {
      if (k > 0) KRN_TRY(put_positions(own, &Position::second));
      KRN_TRY_LET(Tensors outputs, call(own));
      Sharing sharing = sharing_of(outputs, own, s_.weights);
      for (const auto& [output, other] : sharing) held |= other >= outputs.size() && other < outputs.size() + own.size();
      if (k == 0) trial.sharing = std::move(sharing);
      for (TensorRef& output : outputs) {
        if (output && writes()) {  // a view of state or of an input changes with the next call, or when state is put back
          KRN_TRY_LET(output, services.clone(output));
        }
        trial.numbers.push_back(std::move(output));
      }
    }
    for (size_t i = 0; i < own.size(); ++i) {
      if (std::binary_search(seen_.written_inputs.begin(), seen_.written_inputs.end(), i)) {
        trial.numbers.push_back(own[i]);
        continue;
      }
      KRN_TRY_LET(const bool same, same_bits(own[i], inputs[i]));
      if (!same) trial.touched = s_.eager->rules().names().at(i);
    }
    for (const auto& [tensor, before] : state_) {
      KRN_TRY_LET(TensorRef after, services.clone(tensor));
      trial.numbers.push_back(std::move(after));
    }
    if (generators_) {
      KRN_TRY_LET(trial.generators, random_state(s_.device));
    }
    return {};
  };
  const Status status = body();
  KRN_TRY(restore());
  if (!status.ok()) return status;
  if (copies && trial.touched.empty() && !held) {
    for (const size_t i : seen_.written_inputs) own[i].reset();
    *copies = std::move(own);
  }
  return trial;
}

Status Trials::attempt(const CallFn& call, const Tensors& own) {
  const Status status = call(own).status();
  KRN_TRY(restore());
  return status;
}

Result<RefereeAnswer> Trials::referee(const Tensors& inputs, const Roundings& roundings) {
  if (num_calls() > 1) KRN_TRY(look_at_positions(inputs));
  EagerProgram::Contents second;
  for (const Position& each : positions_)
    if (each.second) second.weights.emplace_back(seen_.written_weights[each.number], each.second);
  for (const Position& each : input_positions_)
    if (each.second) second.inputs.emplace_back(each.number, each.second);
  KRN_TRY_LET(EagerProgram::RefereeRun run, s_.eager->referee(inputs, seen_.written_weights, num_calls(), roundings, second));
  KRN_TRY(restore());
  RefereeAnswer answer;
  Tensors& numbers = answer.numbers;
  for (Tensors& outputs : run.outputs) numbers.insert(numbers.end(), outputs.begin(), outputs.end());
  for (const size_t i : seen_.written_inputs) numbers.push_back(run.inputs.back()[i]);
  numbers.insert(numbers.end(), run.weights.back().begin(), run.weights.back().end());
  answer.first_inputs = std::move(run.inputs.front());
  answer.first_weights = std::move(run.weights.front());
  answer.has_own_dtype = !run.own_dtype.empty();
  return answer;
}

Result<std::vector<Movement>> Trials::movements(const Tensors& inputs, const Tensors& referee, const Tensors& eager, double sums) {
  return movements_like(referee, eager, s_.runtime.tensors(), allows_tf32(s_.device), sums,
                        [&](uint32_t seed, bool tf32) -> Result<Tensors> {
                          KRN_TRY_LET(RefereeAnswer answer, this->referee(inputs, {seed, tf32, &seen_.whole_products}));
                          return std::move(answer.numbers);
                        });
}

Tensors Trials::contents(const Tensors& inputs) const {
  Tensors out;
  const auto before_last = [&](const std::vector<Position>& positions, size_t number, const TensorRef& before) {
    const auto at = std::find_if(positions.begin(), positions.end(), [&](const Position& each) { return each.number == number; });
    return num_calls() > 1 && at != positions.end() && at->second ? at->second : before;
  };
  for (const size_t i : seen_.written_inputs) out.push_back(before_last(input_positions_, i, inputs[i]));
  for (size_t i = 0; i < state_.size(); ++i) out.push_back(before_last(positions_, i, state_[i].second));
  return out;
}

std::vector<std::string> Trials::names(size_t num_outputs) const {
  std::vector<std::string> names;
  for (int k = 0; k < num_calls(); ++k)
    for (size_t i = 0; i < num_outputs; ++i) names.push_back("output " + std::to_string(i) + (k ? " of a second call" : ""));
  for (const size_t i : seen_.written_inputs) names.push_back("input \"" + s_.eager->rules().names().at(i) + "\" after the call");
  for (const size_t i : seen_.written_weights) names.push_back("\"" + s_.weights[i].name + "\" after the call");
  return names;
}

std::string Trials::other_difference(const Trial& eager, const Trial& candidate, size_t num_outputs) const {
  if (!candidate.touched.empty()) return "it writes input \"" + candidate.touched + "\", which eager does not";
  if (candidate.generators != eager.generators) return "the random generators are left in another state than eager leaves them";
  if (candidate.sharing == eager.sharing) return {};
  const auto name = [&](size_t i) {
    if (i < num_outputs) return "output " + std::to_string(i);
    i -= num_outputs;
    const std::vector<std::string>& inputs = s_.eager->rules().names();
    return i < inputs.size() ? "input \"" + inputs[i] + "\"" : "\"" + s_.weights[i - inputs.size()].name + "\"";
  };
  const auto first_missing = [&](const Sharing& in, const Sharing& from) {
    const auto missing =
        std::find_if(in.begin(), in.end(), [&](const auto& pair) { return std::find(from.begin(), from.end(), pair) == from.end(); });
    return missing == in.end() ? std::string() : name(missing->first) + " and " + name(missing->second);
  };
  if (const std::string pair = first_missing(candidate.sharing, eager.sharing); !pair.empty())
    return pair + " share memory, eager's do not";
  return "in eager, " + first_missing(eager.sharing, candidate.sharing) + " share memory";
}

}  // namespace keirin
