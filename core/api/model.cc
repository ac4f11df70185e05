// SPDX-License-Identifier: Apache-2.0
//
// The public front door over Session: the only place of the core that throws.
#include "core/api/keirin.h"

#include <algorithm>
#include <chrono>

#include <nlohmann/json.hpp>

#include "core/api/raise.h"
#include "core/api/session.h"

namespace keirin {

struct Model::Impl {
  std::unique_ptr<Runtime> runtime;
  std::unique_ptr<Session> session;
};

namespace {

std::vector<TensorRef> wrap(TensorServices& services, const std::vector<TensorView>& views) {
  std::vector<TensorRef> tensors;
  tensors.reserve(views.size());
  for (const TensorView& view : views) {
    auto dtype = dtype_from_name(view.dtype);
    if (!dtype) raise(Status(Code::k_invalid_input, "input " + std::to_string(tensors.size()) + " has the unknown dtype " + view.dtype));
    auto device = device_from_name(view.device);
    if (!device)
      raise(Status(Code::k_invalid_input, "input " + std::to_string(tensors.size()) + " is on the unknown device " + view.device));
    tensors.push_back(take(services.wrap({*dtype, view.sizes, view.strides, *device}, view.data, view.owner)));
  }
  return tensors;
}

}  // namespace

Model Model::load(const std::string& path, const LoadOptions& options) {
  const Options complete = take(options_of(options));
  auto impl = std::make_shared<Impl>();
  impl->runtime = take(Runtime::open(complete));
  impl->session = take(Session::open(*impl->runtime, path, complete));
  return Model(std::move(impl));
}

void Model::compile(const std::vector<TensorView>& inputs) {
  take(impl_->session->compile(wrap(impl_->runtime->tensors(), inputs)));
}

std::vector<TensorView> Model::call(const std::vector<TensorView>& inputs) const {
  std::vector<TensorRef> outputs = take(impl_->session->call(wrap(impl_->runtime->tensors(), inputs)));
  std::vector<TensorView> views;
  views.reserve(outputs.size());
  for (TensorRef& tensor : outputs) {
    TensorView view;
    view.data = tensor->data();
    view.dtype = dtype_name(tensor->dtype());
    view.sizes.assign(tensor->sizes(), tensor->sizes() + tensor->rank());
    view.strides.assign(tensor->strides(), tensor->strides() + tensor->rank());
    view.device = device_name(tensor->device());
    view.owner = std::move(tensor);
    views.push_back(std::move(view));
  }
  return views;
}

bool Model::wait(double seconds) const {
  constexpr double kMostSeconds = 1e9;  // what a clock of nanoseconds holds
  return impl_->session->settle(std::chrono::nanoseconds(static_cast<int64_t>(std::clamp(seconds, 0.0, kMostSeconds) * 1e9)));
}

Signature Model::signature() const { return impl_->session->signature(); }

std::string Model::explain() const {
  std::string text;
  for (const ModelReport& report : impl_->session->reports()) text += explain_text(report);
  return text;
}

std::string Model::report_json() const {
  nlohmann::json out = nlohmann::json::array();
  for (const ModelReport& report : impl_->session->reports()) out.push_back(to_json(report));
  return out.dump(2);
}

}  // namespace keirin
