// SPDX-License-Identifier: Apache-2.0
#include "core/eager/cuda_graph/library.h"

#include <dlfcn.h>

#include <filesystem>

namespace keirin {
namespace {

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
    for (const auto& candidate :
         {folder / kLibrary, folder / "lib" / kLibrary, folder / "keirin" / kLibrary, folder / "../lib/keirin" / kLibrary})
      if (std::filesystem::exists(candidate, error)) {
        if (void* library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
        const char* text = dlerror();
        why_not = text ? text : "dlopen failed";
        return nullptr;
      }
  why_not = std::string(kLibrary) + " was not built or not installed";
  return nullptr;
}

}  // namespace

const KeirinCudaGraph* cuda_graph_library(std::string& why_not) {
  static std::string reason;
  static const auto* table = []() -> const KeirinCudaGraph* {
    void* opened = open_library(reason);
    const auto* found = opened ? static_cast<const KeirinCudaGraph*>(dlsym(opened, "keirin_cuda_graph")) : nullptr;
    if (found && found->size == sizeof(KeirinCudaGraph)) return found;
    if (opened) reason = std::string(kLibrary) + " is of another version";
    return nullptr;
  }();
  why_not = reason;
  return table;
}

bool is_recorded(Device device) {
  if (device.kind == Device::kCpu) return false;
  std::string ignored;
  const KeirinCudaGraph* api = cuda_graph_library(ignored);
  return api && api->is_capturing(device.index) != 0;
}

}  // namespace keirin
