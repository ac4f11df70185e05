// SPDX-License-Identifier: Apache-2.0
//
// A plugin's device as the core gets it: claim and compile go to the compile child, what the child made is loaded here or, in worker
// mode, where it will run, and what went wrong once with a region is not tried again. Everything else is the device's own answer.
#pragma once

#include <memory>

#include "core/host/call/device.h"
#include "core/host/worker/compile_client.h"

namespace keirin {

class RunProcesses;

class ContainedDevice final : public PluginDevice {
 public:
  // Told once for each thing that a reader of the report should know.
  using Tell = std::function<void(const std::string& text)>;

  // Without a child it compiles in this process, without a worker it runs there.
  ContainedDevice(std::shared_ptr<UsedPlugin> plugin, UsedDevice& inner, std::shared_ptr<CompileClient> child,
                  std::shared_ptr<RunProcesses> worker, std::shared_ptr<Quarantine> quarantine, std::chrono::milliseconds run_deadline,
                  Tell tell);

  const std::string& plugin_name() const override { return inner_.plugin_name(); }
  const std::string& plugin_version() const override { return inner_.plugin_version(); }
  const std::string& plugin_build_id() const override { return inner_.plugin_build_id(); }
  const std::string& plugin_guid() const override { return inner_.plugin_guid(); }
  uint64_t capabilities() const override { return inner_.capabilities(); }
  const HardwareItem& hardware() const override { return inner_.hardware(); }
  Device torch_device() const override { return inner_.torch_device(); }
  const std::string& name() const override { return inner_.name(); }
  const std::string& arch() const override { return inner_.arch(); }
  const std::string& fingerprint() const override { return inner_.fingerprint(); }
  const krn_device_desc& desc() const override { return inner_.desc(); }

  Status allowed(const Hash& region) override;
  Result<ClaimResult> claim(const PluginRegion& region, const PolicyOptions& policy) override;
  Result<std::shared_ptr<Executable>> compile(const PluginRegion& region, const PolicyOptions& policy,
                                              const CompileOptions& options) override;
  Result<std::shared_ptr<Executable>> resize(const Executable& like, const PluginRegion& region) override;
  Result<Artifact> save(const Executable& executable) override;
  Result<ArtifactVerdict> check(std::string_view token) override { return inner_.check(token); }
  Result<std::shared_ptr<Executable>> load(const PluginRegion& region, const Artifact& artifact) override;
  bool can_record() const override { return !worker_ && inner_.can_record(); }  // what another process launches is not recorded here
  Status begin_recording(uint64_t stream) override { return inner_.begin_recording(stream); }
  Result<std::shared_ptr<Recording>> end_recording(uint64_t stream) override { return inner_.end_recording(stream); }
  Status health() override { return inner_.health(); }
  DeviceCondition condition() override { return inner_.condition(); }
  void quarantine(const Hash& region, const std::string& what) override;
  void judged_wrong(const Hash& region, const std::string& what) override;
  std::set<std::string> known_wrong() const override { return quarantine_->judged_wrong(plugin_guid(), plugin_build_id()); }

  void end_child() {
    if (child_) child_->end();
  }
  // What a failed attempt means for the next one; returns the status for the caller.
  Status judge(const char* function, const Hash& region, Status status);

 private:
  Result<std::shared_ptr<Executable>> compile_in_child(const PluginRegion& region, const PolicyOptions& policy,
                                                       const CompileOptions& options);
  Result<std::shared_ptr<Executable>> compile_here(const PluginRegion& region, const PolicyOptions& policy, const CompileOptions& options);
  Result<std::shared_ptr<Executable>> load_in_worker(const PluginRegion& region, std::optional<Artifact> artifact,
                                                     const PolicyOptions& policy, const CompileOptions& options, uint32_t num_codegen);
  // An executable of this process: what hangs there is judged as what hung elsewhere.
  Result<std::shared_ptr<Executable>> watched(Result<std::shared_ptr<Executable>> made, const Hash& region);
  // allowed(), of who decides: a refusal for a while is noted.
  Status may_begin(const Hash& region);
  bool in_child();  // whether it is asked there; says so once if not
  void leave_child(const std::string& why);

  const std::shared_ptr<UsedPlugin> plugin_;
  UsedDevice& inner_;
  const std::shared_ptr<CompileClient> child_;
  const std::shared_ptr<RunProcesses> worker_;
  const std::shared_ptr<Quarantine> quarantine_;
  const std::chrono::milliseconds run_deadline_;
  const Tell tell_;
  std::atomic<bool> left_child_{false}, told_left_{false}, told_strayed_{false};
};

}  // namespace keirin
