// SPDX-License-Identifier: Apache-2.0
#include "core/eager/replay.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "core/eager/cuda_graph/shim.h"

namespace keirin {
namespace {

constexpr int kWarmUpCalls = 3;  // libraries build their plans and the allocator reaches its peak before a recording
constexpr char kLibrary[] = "libkeirin_cuda_graph.so";

// Beside this program or library, or in lib/keirin of the installation.
void* open_library(std::string& why_not) {
  Dl_info self{};
  std::vector<std::filesystem::path> folders;
  std::error_code error;
  if (dladdr(reinterpret_cast<void*>(&open_library), &self) && self.dli_fname)
    folders.push_back(std::filesystem::absolute(self.dli_fname, error).parent_path());
  if (auto program = std::filesystem::read_symlink("/proc/self/exe", error); !error) folders.push_back(program.parent_path());
  for (const auto& folder : folders)
    for (const auto& candidate : {folder / kLibrary, folder / "lib" / kLibrary, folder / "keirin" / kLibrary, folder / "../lib/keirin" / kLibrary})
      if (std::filesystem::exists(candidate, error)) {
        if (void* library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
        const char* text = dlerror();
        why_not = text ? text : "dlopen failed";
        return nullptr;
      }
  why_not = std::string(kLibrary) + " was not built or not installed";
  return nullptr;
}

const KeirinCudaGraph* library(std::string& why_not) {
  static std::string reason;
  static const auto* table = [] {
    void* opened = open_library(reason);
    return opened ? static_cast<const KeirinCudaGraph*>(dlsym(opened, "keirin_cuda_graph")) : nullptr;
  }();
  why_not = reason;
  return table;
}

Status refuse(const std::string& why) {
  return Status(Code::k_unsupported, {"the call cannot be recorded: " + why, {}, "it is launched step by step", {}});
}

}  // namespace

LaunchReplay::~LaunchReplay() {
  std::string ignored;
  if (recording_) library(ignored)->destroy(recording_);
}

Result<std::unique_ptr<LaunchReplay>> LaunchReplay::record(const Call& call, const std::vector<TensorRef>& inputs,
                                                           TensorServices& services, Device device) {
  if (device.kind != Device::kCuda) return refuse(device_name(device) + " has no launch replay");
  std::string why_not;
  const KeirinCudaGraph* api = library(why_not);
  if (!api) return refuse(why_not);
  std::unique_ptr<LaunchReplay> replay(new LaunchReplay(services, device));
  for (const TensorRef& input : inputs) {
    KRN_TRY_LET(TensorRef own, services.clone(input));
    replay->inputs_.push_back(std::move(own));
  }
  for (int i = 0; i < kWarmUpCalls; ++i) {
    auto outputs = call(replay->inputs_);
    if (!outputs.ok()) return outputs.status();
  }
  KRN_TRY(services.synchronize(device));
  replay->recording_ = api->create(device.index);
  if (!replay->recording_) return refuse(api->error());
  if (api->begin(replay->recording_, device.index) != 0) {
    std::string text = api->error();
    api->end(replay->recording_, 0);
    return refuse(text);
  }
  auto outputs = call(replay->inputs_);
  const bool ended = api->end(replay->recording_, 1) == 0;
  if (!outputs.ok()) return refuse(outputs.status().message().what);
  if (!ended) return refuse(api->error());
  replay->outputs_ = std::move(*outputs);
  for (const TensorRef& output : replay->outputs_) {
    auto it = std::find_if(replay->inputs_.begin(), replay->inputs_.end(),
                           [&](const TensorRef& input) { return output && input && output->data() == input->data(); });
    replay->passed_through_.push_back(it == replay->inputs_.end() ? -1 : static_cast<int>(it - replay->inputs_.begin()));
  }
  return replay;
}

Result<std::vector<TensorRef>> LaunchReplay::run(const std::vector<TensorRef>& inputs) {
  std::string why_not;
  const KeirinCudaGraph* api = library(why_not);
  if (inputs.size() != inputs_.size())
    return Status(Code::k_invalid_input, "the recording takes " + std::to_string(inputs_.size()) + " inputs");
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i]->data() != inputs_[i]->data()) KRN_TRY(services_.copy(inputs_[i], inputs[i]));
  if (api->replay(recording_) != 0) return Status(Code::k_internal, std::string("replay failed: ") + api->error());
  std::vector<TensorRef> outputs;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (!outputs_[i]) {
      outputs.push_back(nullptr);
    } else if (passed_through_[i] >= 0) {
      outputs.push_back(inputs[passed_through_[i]]);
    } else {
      KRN_TRY_LET(TensorRef own, services_.clone(outputs_[i]));
      outputs.push_back(std::move(own));
    }
  }
  return outputs;
}

}  // namespace keirin
