// SPDX-License-Identifier: Apache-2.0
//
// What a plugin's compile and replay returned, as the core calls it. Inside core/host only. The invariant: a successful run
// allocates nothing and takes no lock that the plugin did not ask for.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "core/host/call/device.h"

namespace keirin {

class UsedExecutable final : public Executable {
 public:
  UsedExecutable(std::shared_ptr<UsedPlugin> plugin, UsedDevice* device, krn_exec* exec, const Hash& region, uint32_t num_inputs,
                 uint32_t num_outputs);
  ~UsedExecutable() override;
  Status read_facts();  // info and needs; an executable that cannot state them is none
  krn_exec* handle() const { return exec_; }

  void add_codegen(uint32_t kernels) { info_.num_codegen += kernels; }  // generated for it in the compile child

  const ExecutableInfo& info() const override { return info_; }
  uint64_t workspace_bytes() const override { return workspace_bytes_; }
  uint64_t workspace_align() const override { return workspace_align_; }
  Status run(const krn_tensor* inputs, uint32_t num_inputs, const krn_tensor* outputs, uint32_t num_outputs, void* workspace,
             uint64_t stream, bool recording) override;
  PluginDevice& device() const override { return *device_; }
  void still_running(std::chrono::milliseconds at_least) override;
  // A run that lasts longer than the deadline is a hung one: what `judge` makes of that status is the answer of every run from then
  // on, and of those that wait for their turn. Before the first run.
  void judge_hangs(std::chrono::milliseconds deadline, std::function<Status(Status)> judge);

 private:
  Status in_turn(std::unique_lock<std::timed_mutex>& turn);

  const std::shared_ptr<UsedPlugin> plugin_;  // keeps device_ and the library's state alive
  UsedDevice* const device_;
  krn_exec* const exec_;
  const Hash region_;
  const uint32_t num_inputs_, num_outputs_;
  const std::string where_;
  ExecutableInfo info_;
  uint64_t workspace_bytes_ = 0, workspace_align_ = 64;
  std::atomic<uint64_t> run_id_{0};
  std::atomic<bool> hung_{false};
  std::timed_mutex mutex_;  // one run at a time, where the plugin does not say otherwise
  std::chrono::milliseconds run_deadline_{0};
  std::function<Status(Status)> judge_hang_;  // empty: nobody's business
  Status hang_;                               // never changes once hung_ is set
};

class UsedRecording final : public Recording {
 public:
  UsedRecording(std::shared_ptr<UsedPlugin> plugin, UsedDevice* device, krn_replay* replay)
      : plugin_(std::move(plugin)), device_(device), replay_(replay), where_(plugin_->where("krn.replay.launch")) {}
  ~UsedRecording() override { plugin_->tables().replay.release(replay_); }
  Status launch(uint64_t stream) override;

 private:
  const std::shared_ptr<UsedPlugin> plugin_;
  UsedDevice* const device_;
  krn_replay* const replay_;
  const std::string where_;
};

}  // namespace keirin
