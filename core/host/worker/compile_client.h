// SPDX-License-Identifier: Apache-2.0
//
// One plugin's claim and compile, one process away: the worker answers with claims or an artifact. What goes wrong there costs one
// attempt. What it is not: trust in the answer, which the caller checks.
#pragma once

#include "core/host/plugins.h"
#include "core/host/worker/worker_client.h"

namespace keirin {

class CompileClient {
 public:
  CompileClient(WorkerPlugin plugin, WorkerLimits limits) : worker_(std::move(plugin), limits, "compile", "in the compile child") {}

  struct Compiled {
    Artifact artifact;
    uint32_t num_codegen = 0;  // kernels generated for it
  };
  // As WorkerClient::ask says, or what the plugin said. `device` is the uid of its hardware.
  Result<ClaimResult> claim(const std::string& device, const PluginRegion& region, const PolicyOptions& policy);
  Result<Compiled> compile(const std::string& device, const PluginRegion& region, const PolicyOptions& policy,
                           const CompileOptions& options);
  void end() { worker_.end(); }  // after the question that it has
  // There is none, or it cannot be given what the plugin needs.
  bool no_child() const { return no_child_ || worker_.impossible(); }

 private:
  Result<Compiled> compile_once(const std::string& device, const PluginRegion& region, const PolicyOptions& policy,
                                const CompileOptions& options, bool with_weights, bool* weights_missed);
  Status unreadable(const char* what) const;

  WorkerClient worker_;
  std::atomic<bool> no_child_{false};
};

}  // namespace keirin
