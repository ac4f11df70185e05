// SPDX-License-Identifier: Apache-2.0
//
// The public front door over Session: the only place of the core that throws.
#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>

#include <nlohmann/json.hpp>

#include "core/api/devices.h"
#include "core/api/keirin.h"
#include "core/api/raise.h"
#include "core/api/session.h"
#include "core/api/signature.h"
#include "core/eager/tensor_services.h"

namespace keirin {

struct Model::Impl {
  std::unique_ptr<Runtime> runtime;
  Signature signature;
  std::mutex replacing;  // one replace_weights at a time

  // A call keeps what it took to its end, whatever takes its place meanwhile.
  std::shared_ptr<Session> now() const {
    const std::lock_guard lock(mutex_);
    return session_;
  }
  void put(std::shared_ptr<Session> session) {
    const std::lock_guard lock(mutex_);
    session_.swap(session);
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Session> session_;  // last: it uses the runtime
};

namespace {

TensorRef wrap(Runtime& runtime, const TensorView& view, const std::string& what) {
  const std::optional<DType> dtype = dtype_from_name(view.dtype);
  if (!dtype) raise(Status(Code::k_invalid_input, what + " has the unknown dtype " + view.dtype));
  std::optional<Device> device = device_from_name(view.device);
  if (!device) {  // the name of a plugin, perhaps
    Result<NamedDevice> named = find_device(view.device, runtime.plugins());
    if (!named.ok()) raise(std::move(named).status().at(what));
    device = named->device;
  }
  return take(runtime.tensors().wrap({*dtype, view.sizes, view.strides, *device}, view.data, view.owner));
}

std::vector<TensorRef> wrap_inputs(Runtime& runtime, const std::vector<TensorView>& views) {
  std::vector<TensorRef> tensors;
  tensors.reserve(views.size());
  for (const TensorView& view : views) tensors.push_back(wrap(runtime, view, "input " + std::to_string(tensors.size())));
  return tensors;
}

TensorView view_of(TensorRef tensor) {
  TensorView view;
  view.data = tensor->data();
  view.dtype = dtype_name(tensor->dtype());
  view.sizes.assign(tensor->sizes(), tensor->sizes() + tensor->rank());
  view.strides.assign(tensor->strides(), tensor->strides() + tensor->rank());
  view.device = device_name(tensor->device());
  view.owner = std::move(tensor);
  return view;
}

template <class Open>
std::shared_ptr<Model::Impl> load(const LoadOptions& options, Open&& open) {
  const Options complete = take(options_of(options));
  auto impl = std::make_shared<Model::Impl>();
  impl->runtime = take(Runtime::open(complete));
  std::shared_ptr<Session> session = take(open(*impl->runtime, complete));
  impl->signature = session->signature();
  impl->put(std::move(session));
  return impl;
}

}  // namespace

Model Model::load(const std::string& path, const LoadOptions& options) {
  return Model(keirin::load(options, [&](Runtime& runtime, const Options& complete) { return Session::open(runtime, path, complete); }));
}

Model Model::load_memory(const void* file, size_t size_bytes, const std::string& name, const LoadOptions& options) {
  return Model(keirin::load(options, [&](Runtime& runtime, const Options& complete) {
    return Session::open(runtime, std::span(static_cast<const std::byte*>(file), size_bytes), name, {}, complete);
  }));
}

Model Model::load_descriptor(int descriptor, const std::string& name, const LoadOptions& options) {
  return Model(keirin::load(options, [&](Runtime& runtime, const Options& complete) {
    return Session::open(runtime, descriptor, name, complete);
  }));
}

void Model::compile(const std::vector<TensorView>& inputs) { take(impl_->now()->compile(wrap_inputs(*impl_->runtime, inputs))); }

std::vector<TensorView> Model::call(const std::vector<TensorView>& inputs, const Destination& to) const {
  const std::shared_ptr<Session> session = impl_->now();
  const std::vector<TensorRef> tensors = wrap_inputs(*impl_->runtime, inputs);
  std::vector<TensorRef> given;
  for (const TensorView& view : to.outputs)
    given.push_back(view.data ? wrap(*impl_->runtime, view, "output " + std::to_string(given.size())) : nullptr);
  std::vector<TensorRef> outputs;
  const auto call = [&]() -> Status {
    KRN_TRY_LET(outputs, given.empty() ? session->call(tensors) : session->call_into(tensors, given));
    return {};
  };
  if (const Status status = to.stream ? on_stream(session->device(), to.stream, call) : call(); !status.ok()) raise(status);
  std::vector<TensorView> views;
  views.reserve(outputs.size());
  for (TensorRef& tensor : outputs) views.push_back(tensor ? view_of(std::move(tensor)) : TensorView());
  return views;
}

std::vector<TensorView> Model::in_order(const std::map<std::string, TensorView>& named) const {
  const std::vector<Port>& inputs = impl_->signature.inputs;
  std::vector<TensorView> out(inputs.size());
  std::vector<bool> given(inputs.size());
  for (const auto& [name, view] : named) {
    const size_t position = take(input_position(impl_->signature, name));
    if (given[position]) raise(Status(Code::k_invalid_input, "input " + inputs[position].name + " is given by name and by position"));
    given[position] = true;
    out[position] = view;
  }
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!given[i])
      raise(Status(Code::k_invalid_input, {"input " + inputs[i].name + " is missing", {}, "nothing was run", "give all of them"}));
  return out;
}

bool Model::wait(double seconds) const {
  constexpr double kMostSeconds = 1e9;  // what a clock of nanoseconds holds
  return impl_->now()->settle(std::chrono::nanoseconds(static_cast<int64_t>(std::clamp(seconds, 0.0, kMostSeconds) * 1e9)));
}

void Model::replace_weights(const std::map<std::string, TensorView>& values) {
  const std::lock_guard turn(impl_->replacing);
  std::vector<std::pair<std::string, TensorRef>> tensors;
  for (const auto& [name, view] : values) tensors.emplace_back(name, wrap(*impl_->runtime, view, "weight \"" + name + "\""));
  std::shared_ptr<Session> old = impl_->now();
  impl_->put(take(old->with_weights(tensors)));
  // So that no call is the last to let go of it, who would wait for its threads. One that hangs is not waited for.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (old.use_count() > 1 && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void Model::set_plans(const std::string& plans) {
  const Result<Plans> setting = plans_of(plans);
  if (!setting.ok()) raise(setting.status());
  impl_->now()->set_plans(*setting);
}

std::string Model::plans() const {
  return plans_word(impl_->now()->plans());
}

std::vector<std::pair<std::string, TensorView>> Model::weights() const {
  std::vector<std::pair<std::string, TensorView>> out;
  for (auto& [name, tensor] : impl_->now()->weights()) out.emplace_back(std::move(name), view_of(std::move(tensor)));
  return out;
}

Signature Model::signature() const { return impl_->signature; }

std::string Model::explain() const {
  std::string text;
  for (const ModelReport& report : impl_->now()->reports()) text += explain_text(report);
  return text;
}

std::string Model::report_json() const {
  nlohmann::json out = nlohmann::json::array();
  for (const ModelReport& report : impl_->now()->reports()) out.push_back(to_json(report));
  return out.dump(2);
}

}  // namespace keirin
