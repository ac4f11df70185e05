// SPDX-License-Identifier: Apache-2.0
//
// The one public header with a torch type: calls a keirin::Model with at::Tensor. Header-only over keirin.h, so that it is
// compiled with the caller's own LibTorch flags.
#pragma once

#include <ATen/ATen.h>
#include <keirin/keirin.h>

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

inline TensorView view(const at::Tensor& tensor) {
  return {tensor.data_ptr(), dtype_name(tensor.scalar_type()), tensor.sizes().vec(), tensor.strides().vec(),
          tensor.device().str(), nullptr};
}

inline at::Tensor tensor(const TensorView& view) {
  auto owner = view.owner;
  return at::from_blob(view.data, view.sizes, view.strides, [owner](void*) mutable { owner.reset(); },
                       at::TensorOptions().dtype(scalar_type(view.dtype)).device(view.device));
}

inline std::vector<TensorView> views(const std::vector<at::Tensor>& tensors) {
  std::vector<TensorView> out;
  out.reserve(tensors.size());
  for (const at::Tensor& each : tensors) out.push_back(view(each));
  return out;
}

}  // namespace torch_detail

// The inputs are borrowed for the call; the outputs own their memory.
inline std::vector<at::Tensor> call(const Model& model, const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> outputs;
  for (const TensorView& each : model.call(torch_detail::views(inputs))) outputs.push_back(torch_detail::tensor(each));
  return outputs;
}

inline void compile(Model& model, const std::vector<at::Tensor>& inputs) { model.compile(torch_detail::views(inputs)); }

}  // namespace keirin
