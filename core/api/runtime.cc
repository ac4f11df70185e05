// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include "core/api/session.h"
#include "core/cache/cache.h"
#include "core/eager/tensor_services.h"
#include "core/host/plugins.h"

namespace keirin {
namespace {

// Libraries that register operators do so in their static initialisers; they stay loaded.
Status load_libraries(const std::vector<std::string>& paths) {
  for (const std::string& path : paths)
    if (!dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL)) {
      const char* text = dlerror();
      return Status(Code::k_invalid_input, {"the operator library could not be loaded: " + std::string(text ? text : ""), path,
                                            "nothing was loaded", "give an absolute path to a library built for this LibTorch"});
    }
  return {};
}

}  // namespace

Runtime::Runtime() = default;
Runtime::~Runtime() = default;

Result<std::unique_ptr<Runtime>> Runtime::open(const Options& options) {
  std::unique_ptr<Runtime> runtime(new Runtime);
  runtime->tensors_ = make_tensor_services();
  if (options.threads > 0) runtime->tensors_->set_num_threads(options.threads);
  KRN_TRY(load_libraries(options.load_libraries));
  if (options.use_cache) {
    CacheOptions cache;
    cache.dir = options.cache_dir;
    runtime->cache_ = std::make_unique<Cache>(std::move(cache));
  }
  HostOptions host;
  host.paths = options.plugin_paths;
  host.services = runtime->tensors_.get();
  if (runtime->cache_ && runtime->cache_->usable()) host.cache_dir = runtime->cache_->dir();
  KRN_TRY_LET(runtime->plugins_, PluginHost::open(host));
  return runtime;
}

}  // namespace keirin
