// SPDX-License-Identifier: Apache-2.0
//
// The one public header with a torch type: calls a keirin::Model with at::Tensor. Header-only over keirin.h, so that it is
// compiled with the caller's own LibTorch flags.
#pragma once

#include <ATen/ATen.h>
#include <keirin/keirin.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace keirin {
namespace torch_detail {

struct Name {
  at::ScalarType type;
  const char* name;
};
inline constexpr Name kNames[] = {{at::kBool, "bool"}, {at::kByte, "u8"},   {at::kChar, "i8"},      {at::kShort, "i16"},
                                  {at::kInt, "i32"},   {at::kLong, "i64"},  {at::kHalf, "f16"},     {at::kBFloat16, "bf16"},
                                  {at::kFloat, "f32"}, {at::kDouble, "f64"}, {at::kComplexFloat, "c64"}, {at::kComplexDouble, "c128"}};

inline std::string dtype_name(at::ScalarType type) {
  for (const Name& each : kNames)
    if (each.type == type) return each.name;
  throw Error(2, "invalid_input: this dtype cannot be passed to a model");
}

inline at::ScalarType scalar_type(const std::string& name) {
  for (const Name& each : kNames)
    if (each.name == name) return each.type;
  throw Error(9, "internal: unknown dtype " + name);
}

// LibTorch's builds for ROCm call their devices cuda.
inline std::string device_name(const at::Device& device) {
  const std::string name = device.str();
  return device.is_cuda() && at::globalContext().hasROCM() ? "rocm" + name.substr(4) : name;
}
inline at::Device device_of(const std::string& name) { return at::Device(name.rfind("rocm", 0) == 0 ? "cuda" + name.substr(4) : name); }

// The view borrows; of an undefined tensor it has no memory.
inline TensorView view(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.data_ptr(), dtype_name(tensor.scalar_type()), tensor.sizes().vec(), tensor.strides().vec(),
          device_name(tensor.device()), nullptr};
}

// Undefined for an output that is None.
inline at::Tensor tensor(const TensorView& view) {
  if (view.dtype.empty()) return {};
  auto owner = view.owner;
  return at::from_blob(view.data, view.sizes, view.strides, [owner](void*) mutable { owner.reset(); },
                       at::TensorOptions().dtype(scalar_type(view.dtype)).device(device_of(view.device)));
}

inline std::vector<TensorView> views(const std::vector<at::Tensor>& tensors) {
  std::vector<TensorView> out;
  out.reserve(tensors.size());
  for (const at::Tensor& each : tensors) out.push_back(view(each));
  return out;
}

inline std::map<std::string, TensorView> views(const std::map<std::string, at::Tensor>& tensors) {
  std::map<std::string, TensorView> out;
  for (const auto& [name, each] : tensors) out.emplace(name, view(each));
  return out;
}

}  // namespace torch_detail

// The inputs are borrowed for the call; the outputs own their memory.
inline std::vector<at::Tensor> call(const Model& model, const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> outputs;
  for (const TensorView& each : model.call(torch_detail::views(inputs))) outputs.push_back(torch_detail::tensor(each));
  return outputs;
}

// The same into tensors of the caller's, one for each output; undefined ones are not written.
inline void call_into(const Model& model, const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs) {
  Destination to;
  to.outputs = torch_detail::views(outputs);
  model.call(torch_detail::views(inputs), to);
}

// Inputs and outputs by the names of the signature; an output that is None is left out.
inline std::map<std::string, at::Tensor> call_named(const Model& model, const std::map<std::string, at::Tensor>& inputs) {
  const std::vector<TensorView> outputs = model.call(model.in_order(torch_detail::views(inputs)));
  const Signature signature = model.signature();
  std::map<std::string, at::Tensor> named;
  for (size_t i = 0; i < outputs.size(); ++i)
    if (!outputs[i].dtype.empty()) named.emplace(signature.outputs.at(i).name, torch_detail::tensor(outputs[i]));
  return named;
}

inline void replace_weights(Model& model, const std::map<std::string, at::Tensor>& values) {
  model.replace_weights(torch_detail::views(values));
}

inline void compile(Model& model, const std::vector<at::Tensor>& inputs) { model.compile(torch_detail::views(inputs)); }

}  // namespace keirin
