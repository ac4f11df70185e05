// SPDX-License-Identifier: Apache-2.0
//
// LibTorch carries an XNNPACK of its own and exports it, as it does its thread pool. A plugin that is linked with -lXNNPACK would have its
// calls bound to LibTorch's functions, which are of another year and take other arguments. So libxnnpack_threads.so, which needs XNNPACK,
// is opened with RTLD_DEEPBIND: it and what it brings look for a name among themselves first.
#include "engine.h"

#include <dlfcn.h>

#include <algorithm>
#include <string>

namespace xnnpack_plugin {
namespace {

using keirin::kit::Error;

// Beside the plugin's own library.
std::string threads_library() {
  Dl_info self{};
  ::dladdr(reinterpret_cast<const void*>(&engine), &self);
  const std::string path = self.dli_fname ? self.dli_fname : "";
  return path.substr(0, path.rfind('/') + 1) + "libxnnpack_threads.so";
}

bool somebody_elses() {
  static const bool kIs = [] {
    void* const already = ::dlopen(XNNPACK_SONAME, RTLD_NOW | RTLD_NOLOAD);
    if (already) ::dlclose(already);
    return already != nullptr;
  }();
  return kIs;
}

void* open_library() {
  (void)somebody_elses();  // asked before it is ours
  const std::string path = threads_library();
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (!library) {
    const char* const why = ::dlerror();
    throw Error(KRN_STATUS_unsupported, path + " cannot be opened (" + (why ? why : "no reason given") +
                                            "): install Debian's libxnnpack0 or build the plugin for the one that is here");
  }
  return library;
}

template <class F>
void find(void* library, const char* name, F& to) {
  to = reinterpret_cast<F>(::dlsym(library, name));
  if (!to)
    throw Error(KRN_STATUS_unsupported,
                std::string("this build of XNNPACK has no ") + name + ": build the plugin for the one that is here");
}

Engine open_engine() {
  Engine out;
  void* const library = open_library();
#define FIND(name) find(library, #name, out.name);
  XNNPACK_FUNCTIONS(FIND)
#undef FIND
  const xnn_status status = out.xnn_initialize(nullptr);
  if (status != xnn_status_success)
    throw Error(KRN_STATUS_unsupported, std::string("XNNPACK does not run on this processor: ") + text_of(status));
  return out;
}

}  // namespace

const Engine& engine() {
  static const Engine kEngine = open_engine();
  return kEngine;
}

std::unique_ptr<pthreadpool> host_threads() {
  const keirin::kit::Host& h = keirin::kit::host();
  if (somebody_elses() || h.role != KRN_ROLE_RUN || !h.threads || !h.threads->parallel_for || !h.threads->num_threads) return nullptr;
  return std::make_unique<pthreadpool>(pthreadpool{h.threads, h.host, std::max(1, h.threads->num_threads(h.host))});
}

krn_code code_of(xnn_status status) noexcept {
  switch (status) {
    case xnn_status_success: return KRN_STATUS_ok;
    case xnn_status_out_of_memory: return KRN_STATUS_exhausted;
    case xnn_status_unsupported_parameter:
    case xnn_status_unsupported_hardware: return KRN_STATUS_unsupported;
    default: return KRN_STATUS_internal;
  }
}

const char* text_of(xnn_status status) noexcept {
  switch (status) {
    case xnn_status_success: return "done";
    case xnn_status_uninitialized: return "it was not initialised";
    case xnn_status_invalid_parameter: return "an argument is invalid";
    case xnn_status_invalid_state: return "the call came in a wrong order";
    case xnn_status_unsupported_parameter: return "it does not offer this";
    case xnn_status_unsupported_hardware: return "it does not know the processor";
    case xnn_status_out_of_memory: return "memory ran out";
    default: return "a status that this plugin does not know";
  }
}

void check(xnn_status status, const char* what) {
  if (status != xnn_status_success) throw Error(code_of(status), std::string("XNNPACK, ") + what + ": " + text_of(status));
}

}  // namespace xnnpack_plugin
