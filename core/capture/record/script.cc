// SPDX-License-Identifier: Apache-2.0
//
// TorchScript by recording: its interpreter asks the dispatcher for operators as C++ does, and branches, loops, lists and dicts are gone
// from what one run shows.
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>

#include <filesystem>
#include <optional>

#include "core/api/raise.h"
#include "core/capture/record/capture.h"
#include "core/capture/record/recorder.h"

namespace keirin {
namespace {

void flatten(std::vector<at::Tensor>& out, const c10::IValue& value) {
  if (value.isTensor()) return out.push_back(value.toTensor());
  if (value.isTuple()) {
    for (const c10::IValue& each : value.toTupleRef().elements()) flatten(out, each);
  } else if (value.isList()) {
    for (const c10::IValue& each : value.toListRef()) flatten(out, each);
  } else if (value.isGenericDict()) {
    for (const auto& each : value.toGenericDict()) flatten(out, each.value());  // in the order of insertion
  } else if (value.isNone()) {
    out.emplace_back();
  } else {
    raise(Status(Code::k_unsupported, "the script returns a " + value.tagKind() + ", which is not a tensor"));
  }
}

}  // namespace

CapturedModel CapturedModel::load_script(const std::string& path, const LoadOptions& options) {
  torch::jit::Module module = torch::jit::load(path, c10::Device(options.device));
  module.eval();
  Source source;
  for (const auto& each : module.named_parameters()) source.weights.emplace_back(each.name, each.value);
  for (const auto& each : module.named_buffers()) source.weights.emplace_back(each.name, each.value);
  source.state = [module] { return static_cast<uint64_t>(module.is_training()); };
  source.name = std::filesystem::path(path).stem().string();
  source.forward = [module](const std::vector<at::Tensor>& inputs) mutable {
    // The optimising executor fuses operators into code of its own, which nothing would see.
    std::optional<torch::jit::GraphOptimizerEnabledGuard> plain;
    if (is_recording()) plain.emplace(false);
    std::vector<at::Tensor> out;
    flatten(out, module.forward(std::vector<c10::IValue>(inputs.begin(), inputs.end())));
    return out;
  };
  return CapturedModel(std::move(source), options);
}

}  // namespace keirin
