// SPDX-License-Identifier: Apache-2.0
//
// The public front door over Session: the only place of the core that throws.
#include "core/api/keirin.h"

#include <nlohmann/json.hpp>

#include "core/api/session.h"

namespace keirin {

struct Model::Impl {
  std::unique_ptr<Runtime> runtime;
  std::unique_ptr<Session> session;
};

namespace {

[[noreturn]] void raise(const Status& status) {
  if (status.cause()) std::rethrow_exception(status.cause());
  throw Error(static_cast<int>(status.code()), status.text());
}

Device parse_device(const std::string& name) {
  if (name.rfind("cuda", 0) == 0) return {Device::kCuda, name.size() > 5 ? std::stoi(name.substr(5)) : 0};
  return {};
}

std::vector<TensorRef> wrap(TensorServices& services, const std::vector<TensorView>& views) {
  std::vector<TensorRef> tensors;
  tensors.reserve(views.size());
  for (const TensorView& view : views) {
    auto dtype = dtype_from_name(view.dtype);
    if (!dtype) raise(Status(Code::k_invalid_input, "input " + std::to_string(tensors.size()) + " has the unknown dtype " + view.dtype));
    auto tensor = services.wrap({*dtype, view.sizes, view.strides, parse_device(view.device)}, view.data, view.owner);
    if (!tensor.ok()) raise(tensor.status());
    tensors.push_back(std::move(*tensor));
  }
  return tensors;
}

}  // namespace

Model Model::load(const std::string& path, const LoadOptions& options) {
  Options internal;
  internal.device = options.device;
  internal.mode = options.mode;
  internal.threads = options.threads;
  internal.budget_seconds = options.budget_seconds;
  internal.background = options.background;
  internal.run_in = options.run_in;
  internal.cache_dir = options.cache_dir;
  internal.plugin_paths = options.plugin_paths;
  internal.fallback = options.fallback == "forbid" ? Fallback::kForbid : options.fallback == "warn" ? Fallback::kWarn : Fallback::kAllow;
  internal.numerics = options.numerics == "strict" ? Numerics::kStrict : options.numerics == "fast" ? Numerics::kFast : Numerics::kDefault;
  auto impl = std::make_shared<Impl>();
  auto runtime = Runtime::open(internal);
  if (!runtime.ok()) raise(runtime.status());
  impl->runtime = std::move(*runtime);
  auto session = Session::open(*impl->runtime, path, internal);
  if (!session.ok()) raise(session.status());
  impl->session = std::move(*session);
  return Model(std::move(impl));
}

void Model::compile(const std::vector<TensorView>& inputs) {
  auto report = impl_->session->compile(wrap(impl_->runtime->tensors(), inputs));
  if (!report.ok()) raise(report.status());
}

std::vector<TensorView> Model::call(const std::vector<TensorView>& inputs) const {
  auto outputs = impl_->session->call(wrap(impl_->runtime->tensors(), inputs));
  if (!outputs.ok()) raise(outputs.status());
  std::vector<TensorView> views;
  views.reserve(outputs->size());
  for (TensorRef& tensor : *outputs) {
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
