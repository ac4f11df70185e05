// SPDX-License-Identifier: Apache-2.0
//
// One plugin library in this process: opened, negotiated, its tables read. It is never closed: destructors of what others still
// use, and threads on unmapped code, took hosts down. Opening runs the library's code: only after the probe, or in its child.
#pragma once

#include <memory>
#include <new>
#include <string>

#include "abi/plugin.h"
#include "core/base/status.h"
#include "core/host/call/host_tables.h"

namespace keirin {

// The stages in which a plugin can fail while it is looked at, in order.
inline constexpr const char* kProbeStages[] = {"load", "entry", "initialize", "enumerate", "describe", "shutdown"};

struct LoadedPlugin {
  std::string version, build_id;
  krn_guid guid{};
  uint64_t capabilities = 0;
  // Tables of this build's size; a function that the plugin does not offer is null. `has_*`: the optional tables.
  krn_plugin_table plugin{};
  krn_device_table device{};
  krn_compile_table compile{};
  krn_exec_table exec{};
  krn_artifact_table artifact{};
  krn_replay_table replay{};
  bool has_artifact = false, has_replay = false;
};

// The machine of an ELF file, read as data before anything of it runs: `corrupt` if it is not a shared library of this machine's
// kind, with the kind that it is.
Status check_library_file(const std::string& path);

// Calls dlopen and nothing else of the plugin (but its static initialisers). The handle lives as long as the process.
class PluginLibrary;
Result<PluginLibrary*> open_library(const std::string& path);

// Negotiates and reads the tables. Everything required is there afterwards.
Result<LoadedPlugin> negotiate(PluginLibrary& library, krn_host* host, uint32_t role);

// Runs a call into the plugin; what it throws becomes `internal`: no exception crosses.
template <class F>
Status call_plugin(const std::string& where, F&& f) {
  krn_err err;
  krn_code code;
  try {
    code = f(&err);
  } catch (const std::bad_alloc&) {
    return Status(Code::k_exhausted, Message{"the plugin ran out of memory", where, {}, {}});
  } catch (...) {
    return Status(Code::k_internal, Message{"the plugin threw an exception across the boundary", where, {},
                                            "report it to the plugin's publisher"});
  }
  if (code == KRN_STATUS_ok) return {};
  return status_of(code, err, where);
}

}  // namespace keirin
