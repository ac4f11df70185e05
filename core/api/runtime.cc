// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include "core/api/events.h"
#include "core/api/session.h"
#include "core/cache/bad_records.h"
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

std::chrono::milliseconds milliseconds_of(double seconds) { return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3)); }

}  // namespace

Runtime::Runtime() = default;
Runtime::~Runtime() = default;

std::string Runtime::take_cache_trouble() {
  const std::lock_guard lock(trouble_mutex_);
  return std::exchange(cache_trouble_, {});
}

Result<std::unique_ptr<Runtime>> Runtime::open(const Options& given) {
  KRN_TRY_LET(const Options options, complete_options(given));
  std::unique_ptr<Runtime> runtime(new Runtime);
  // One for the process, and never destroyed: plugins are shared by all Runtimes and keep what they were offered first.
  static TensorServices* const tensors = make_tensor_services().release();
  runtime->tensors_ = tensors;
  if (options.threads > 0) runtime->tensors_->set_num_threads(options.threads);
  KRN_TRY(load_libraries(options.load_libraries));
  if (options.use_cache && options.imagine.empty()) {
    CacheOptions cache;
    cache.dir = options.cache_dir;
    cache.warn = [runtime = runtime.get()](std::string_view text) {
      const std::lock_guard lock(runtime->trouble_mutex_);
      runtime->cache_trouble_ = text;
    };
    runtime->cache_ = std::make_unique<Cache>(std::move(cache));
  }
  HostOptions host;
  host.paths = options.plugin_paths;
  host.services = runtime->tensors_;
  if (runtime->cache_ && runtime->cache_->usable()) host.cache_dir = runtime->cache_->dir();
  host.quarantine = runtime->quarantine_ = open_quarantine(runtime->cache_.get());
  host.compile_in = options.compile_in == "process" ? CompileIn::kProcess : CompileIn::kChild;
  host.compile_deadline = milliseconds_of(options.compile_deadline_seconds);
  host.run_in = options.run_in == "worker" ? RunIn::kWorker : RunIn::kProcess;
  host.run_deadline = milliseconds_of(options.run_deadline_seconds);
  host.background = options.compile == When::kBackground;
  if (options.on_event)
    host.log = [on_event = options.on_event](int level, std::string_view text) {
      send(on_event, {Event::Kind::kLog, level, {}, std::string(text), 0});
    };
  KRN_TRY_LET(runtime->plugins_, PluginHost::open(host));
  KRN_TRY(check_plugin_names(options, *runtime->plugins_));
  return runtime;
}

}  // namespace keirin
