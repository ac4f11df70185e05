// SPDX-License-Identifier: Apache-2.0
#include "python/native/draws.h"

#include "core/eager/at_tensor.h"
#include "core/eager/tensor_services.h"
#include "python/native/runtime.h"

namespace py = pybind11;

namespace keirin::python {
namespace {

std::vector<at::Tensor> call(const py::function& draw) {
  const py::gil_scoped_acquire lock;
  return draw().cast<std::vector<at::Tensor>>();
}

}  // namespace

RepeatedDraws::RepeatedDraws(py::function draw, at::Device device) : draw_(std::move(draw)), services_(make_tensor_services()) {
  const LaunchReplay::Call once = [this](const std::vector<TensorRef>&) -> Result<std::vector<TensorRef>> {
    const py::gil_scoped_acquire lock;  // until what was raised is gone
    try {
      return refs_of(call(draw_));
    } catch (const std::exception& error) {
      return Status(Code::k_internal, error.what());
    }
  };
  replay_ = std::make_unique<ReplayInPlace>(once, ReplayInPlace::recorder(once, {}, *services_, device_of(device)), *services_,
                                            device_of(device));
}

std::vector<at::Tensor> RepeatedDraws::draw() {
  const Result<std::vector<TensorRef>> drawn = replay_->run({});
  if (!drawn.ok()) return call(draw_);  // which raises it
  std::vector<at::Tensor> out;
  for (const TensorRef& each : *drawn) out.push_back(to_at(each));
  return out;
}

}  // namespace keirin::python
