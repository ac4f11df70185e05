// SPDX-License-Identifier: Apache-2.0
#include "core/eager/rows/launch_replay.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "core/base/overlap.h"
#include "core/eager/cuda_graph/library.h"

namespace keirin {
namespace {

Status refuse(const std::string& why) {
  return Status(Code::k_unsupported, {"the call cannot be recorded: " + why, {}, "it is launched step by step", {}});
}

// Whether LibTorch copies one to the other as one piece of memory: that can be redirected. Other copies stay outside the recording,
// where they read what the call brings.
bool copied_at_once(const Tensor& to, const Tensor& from) {
  const int64_t rank = to.rank();
  if (to.dtype() != from.dtype() || from.rank() != rank || !std::equal(to.strides(), to.strides() + rank, from.strides())) return false;
  std::vector<std::pair<int64_t, int64_t>> axes;  // stride, size
  for (int64_t d = 0; d < rank; ++d)
    if (to.sizes()[d] != 1) axes.emplace_back(to.strides()[d], to.sizes()[d]);
  std::sort(axes.begin(), axes.end());
  int64_t dense = 1;
  for (const auto& [stride, size] : axes) {
    if (stride != dense || size == 0) return false;
    dense *= size;
  }
  return to.device() == from.device();
}

// Whether a recorded copy that reads what `spec` says can read `from` as it lies; asked by every call. Along one element there is
// no stride.
bool lies_alike(const TensorSpec& spec, const Tensor& from) {
  if (from.dtype() != spec.dtype || from.rank() != static_cast<int64_t>(spec.strides.size()) || !(from.device() == spec.device))
    return false;
  for (size_t d = 0; d < spec.strides.size(); ++d)
    if (spec.strides[d] != from.strides()[d] && spec.sizes[d] != 1) return false;
  return true;
}

Result<const KeirinCudaGraph*> recorder(const std::vector<TensorRef>& inputs, Device device) {
  if (device.kind == Device::kCpu) return refuse("cpu has no launch replay");  // LibTorch's graphs are of what it calls cuda
  std::string why_not;
  const KeirinCudaGraph* api = cuda_graph_library(why_not);
  if (!api) return refuse(why_not);
  for (const TensorRef& input : inputs)
    if (input && input->device() != device) return refuse("an input lies in host memory, whose number would be recorded as it is now");
  return api;
}

bool is_set(const std::vector<bool>& flags, size_t i) { return i < flags.size() && flags[i]; }

// Whether an output shares no memory with another one or with an input: who gets it may write it.
bool lies_apart(const std::vector<TensorRef>& outputs, size_t k, const std::vector<TensorRef>& inputs) {
  const auto meets = [&](const TensorRef& other) { return other && ranges_meet(*outputs[k], *other); };
  for (size_t i = 0; i < outputs.size(); ++i)
    if (i != k && meets(outputs[i])) return false;
  return std::none_of(inputs.begin(), inputs.end(), meets);
}

}  // namespace

LaunchReplay::~LaunchReplay() {
  std::string ignored;
  if (recording_) cuda_graph_library(ignored)->destroy(recording_);
}

Result<std::unique_ptr<LaunchReplay>> LaunchReplay::record(const Call& call, const std::vector<TensorRef>& inputs,
                                                           const std::vector<size_t>& written_inputs, TensorServices& services,
                                                           Device device) {
  KRN_TRY_LET(const KeirinCudaGraph* api, recorder(inputs, device));
  std::unique_ptr<LaunchReplay> replay(new LaunchReplay(services, device));
  replay->written_inputs_ = written_inputs;
  std::vector<TensorRef> own;
  for (const TensorRef& input : inputs) {
    KRN_TRY_LET(own.emplace_back(), services.clone(input));
  }
  // Once unrecorded: libraries load their code and build their plans, and it shows whether random numbers are drawn. What it returns takes
  // the place of the caller's outputs.
  const unsigned long long drawn = api->drawn(device.index);
  KRN_TRY_LET(const std::vector<TensorRef> outside, call(own));
  const bool draws = api->drawn(device.index) != drawn;
  KRN_TRY(services.synchronize(device));
  Specs made;
  for (const TensorRef& output : outside) made.push_back(output ? std::optional(spec_of(*output)) : std::nullopt);
  KRN_TRY(replay->capture(call, inputs, own, outside, made, {}, draws));
  return replay;
}

Result<std::unique_ptr<LaunchReplay>> LaunchReplay::record_in_place(const Call& call, const std::vector<TensorRef>& inputs,
                                                                    const std::vector<size_t>& written_inputs, const InPlace& in_place,
                                                                    const Specs& made, bool draws, TensorServices& services,
                                                                    Device device) {
  KRN_TRY(recorder(inputs, device).status());
  std::unique_ptr<LaunchReplay> replay(new LaunchReplay(services, device));
  std::vector<TensorRef> own, outside(made.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    own.push_back(inputs[i]);
    if (!is_set(in_place.inputs, i)) {
      KRN_TRY_LET(own.back(), services.clone(inputs[i]));
    }
  }
  for (const size_t i : written_inputs)
    if (!is_set(in_place.inputs, i)) replay->written_inputs_.push_back(i);
  for (size_t k = 0; k < made.size(); ++k)
    if (made[k] && !is_set(in_place.outputs, k)) {
      KRN_TRY_LET(outside[k], services.allocate(*made[k]));
    }
  KRN_TRY(replay->capture(call, inputs, own, outside, made, in_place, draws));
  return replay;
}

Status LaunchReplay::capture(const Call& call, const std::vector<TensorRef>& inputs, const std::vector<TensorRef>& own,
                             const std::vector<TensorRef>& outside, const Specs& made, const InPlace& in_place, bool draws) {
  std::string ignored;
  const KeirinCudaGraph* api = cuda_graph_library(ignored);
  recording_ = api->create(device_.index);
  if (!recording_) return refuse(api->error());
  if (api->begin(recording_, device_.index, draws) != 0) return refuse(api->error());
  const Status status = capture_calls(call, inputs, own, outside, made, in_place);
  const bool ended = api->end(recording_, 1) == 0;
  if (!status.ok()) return refuse(status.message().what);
  if (!ended) return refuse(api->error());
  bool found = true;
  for (Border& border : inputs_)
    if (border.outside && !border.in_place)
      found = (border.copy = api->find_copy(recording_, border.own->data(), border.outside)) >= 0 && found;
  for (Border& border : outputs_)
    if (border.outside) found = (border.copy = api->find_copy(recording_, border.outside, border.own->data())) >= 0 && found;
  if (!found) return refuse("a copy of an input or an output was not recorded as one");
  return {};
}

Status LaunchReplay::capture_calls(const Call& call, const std::vector<TensorRef>& inputs, const std::vector<TensorRef>& own,
                                   const std::vector<TensorRef>& outside, const Specs& made, const InPlace& in_place) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    Border border = border_of(own[i]);
    border.in_place = is_set(in_place.inputs, i);
    if (border.in_place) {
      border.own = nullptr;  // whoever lies there in a later call is it
      border.outside = inputs[i]->data();
    } else if (copied_at_once(*own[i], *inputs[i])) {
      border.outside = inputs[i]->data();
      KRN_TRY(services_.copy(own[i], inputs[i]));
    }
    inputs_.push_back(std::move(border));
  }
  KRN_TRY_LET(const std::vector<TensorRef> outputs, call(own));
  for (size_t k = 0; k < outputs.size(); ++k) {
    const bool moves = outputs[k] && k < made.size() && made[k] && outputs[k]->device() != made[k]->device;
    if (outputs[k] && (moves || outputs[k]->device() != device_))  // replays would not compute it, or leave it where nobody looks
      return Status(Code::k_unsupported,
                    "output " + std::to_string(k) + " lies in host memory" + (moves ? " where the call is not recorded" : ""));
  }
  std::set<const void*> taken;  // one tensor may be two outputs
  for (size_t k = 0; k < outputs.size(); ++k) {
    Border border = border_of(outputs[k]);
    for (size_t i = 0; i < own.size(); ++i)
      if (border.own && same_elements(*border.own, *own[i])) border.input = static_cast<int>(i);
    const bool is_made = border.own && border.input < 0;
    border.in_place = is_made && is_set(in_place.outputs, k) && lies_apart(outputs, k, own);
    if (is_made && !border.in_place && k < outside.size() && outside[k] && copied_at_once(*outside[k], *border.own) &&
        taken.insert(outside[k]->data()).second) {
      border.outside = outside[k]->data();
      KRN_TRY(services_.copy(outside[k], border.own));
    }
    outputs_.push_back(std::move(border));
  }
  return {};
}

bool LaunchReplay::lie_in_place(const std::vector<TensorRef>& inputs) const {
  for (size_t i = 0; i < inputs_.size(); ++i)
    if (inputs_[i].in_place && (inputs[i]->data() != inputs_[i].outside || !lies_alike(inputs_[i].spec, *inputs[i]))) return false;
  return true;
}

std::vector<size_t> LaunchReplay::held_outputs() const {
  std::vector<size_t> out;
  for (size_t k = 0; k < outputs_.size(); ++k)
    if (outputs_[k].in_place && !outputs_[k].held.expired()) out.push_back(k);
  return out;
}

uint64_t LaunchReplay::drawn(Device device) {
  std::string ignored;
  const KeirinCudaGraph* api = cuda_graph_library(ignored);
  return api && device.kind != Device::kCpu ? api->drawn(device.index) : 0;
}

LaunchReplay::Border LaunchReplay::border_of(const TensorRef& own) const {
  if (!own) return {};
  return {own, {own->dtype(), {own->sizes(), own->sizes() + own->rank()}, {own->strides(), own->strides() + own->rank()}, device_}};
}

// Before a replay: what the recording will read is the caller's, or a copy in the recording's strides.
Status LaunchReplay::bring(Border& border, const TensorRef& from, std::vector<TensorRef>& kept) {
  std::string ignored;
  if (border.in_place) return {};
  if (border.copy < 0) return from->data() == border.own->data() ? Status() : services_.copy(border.own, from);
  TensorRef dense = from;
  if (!lies_alike(border.spec, *from)) {
    KRN_TRY_LET(dense, services_.allocate(border.spec));
    KRN_TRY(services_.copy(dense, from));
    kept.push_back(dense);
  }
  if (dense->data() == border.outside) return {};
  if (cuda_graph_library(ignored)->redirect(recording_, border.copy, border.own->data(), dense->data()) != 0)
    return Status(Code::k_internal, std::string("an input of a replay: ") + cuda_graph_library(ignored)->error());
  border.outside = dense->data();
  return {};
}

// What the recording itself filled, for the caller.
Result<TensorRef> LaunchReplay::hand_out(Border& border) {
  const auto held = std::make_shared<TensorRef>(border.own);  // the memory outlives the recording where somebody has it
  border.held = held;
  return services_.wrap(border.spec, border.own->data(), held);
}

// Before a replay too: the tensor that its copy will fill. Null where there is none.
Result<TensorRef> LaunchReplay::take(Border& border) {
  std::string ignored;
  if (border.in_place || border.copy < 0) return TensorRef();
  KRN_TRY_LET(TensorRef fresh, services_.allocate(border.spec));
  if (fresh->data() == border.outside) return fresh;
  if (cuda_graph_library(ignored)->redirect(recording_, border.copy, fresh->data(), border.own->data()) != 0)
    return Status(Code::k_internal, std::string("an output of a replay: ") + cuda_graph_library(ignored)->error());
  border.outside = fresh->data();
  return fresh;
}

Result<std::vector<TensorRef>> LaunchReplay::run(const std::vector<TensorRef>& inputs) {
  std::string why_not;
  const KeirinCudaGraph* api = cuda_graph_library(why_not);
  if (inputs.size() != inputs_.size())
    return Status(Code::k_invalid_input, "the recording takes " + std::to_string(inputs_.size()) + " inputs");
  std::lock_guard lock(mutex_);
  std::vector<TensorRef> kept;  // until the replay is enqueued: memory that is given back before may be the next input's
  for (size_t i = 0; i < inputs.size(); ++i) KRN_TRY(bring(inputs_[i], inputs[i], kept));
  std::vector<TensorRef> outputs;
  outputs.reserve(outputs_.size());
  for (Border& border : outputs_) {
    outputs.push_back(border.input >= 0 ? inputs[border.input] : nullptr);
    if (border.own && border.input < 0) {
      KRN_TRY_LET(outputs.back(), take(border));
    }
  }
  if (api->replay(recording_) != 0) return Status(Code::k_internal, std::string("replay failed: ") + api->error());
  // Behind it, while the device works: a forward hands out hundreds.
  for (size_t i = 0; i < outputs_.size(); ++i)
    if (outputs_[i].own && !outputs[i]) {
      KRN_TRY_LET(outputs[i], outputs_[i].in_place ? hand_out(outputs_[i]) : services_.clone(outputs_[i].own));
    }
  for (const size_t i : written_inputs_) KRN_TRY(services_.copy(inputs[i], inputs_[i].own));
  return outputs;
}

}  // namespace keirin
