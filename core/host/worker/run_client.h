// SPDX-License-Identifier: Apache-2.0
//
// Worker mode: regions run in a keirin-worker, whose death costs the call and not the service. The arguments are copied through shared
// memory, of the host or of the GPU, so that a run that failed has touched nothing of the caller's; the weights are copied once. After a
// worker died, what it held is loaded again into the next one, region by region as they are called.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/host/guard/contained_device.h"
#include "core/host/worker/compile_words.h"
#include "core/host/worker/device_arguments.h"
#include "core/host/worker/shared_arguments.h"
#include "core/host/worker/worker_client.h"

namespace keirin {

// One process in which regions of a plugin run, one at a time, so that it is known whose fault its end is.
class RunProcess {
 public:
  RunProcess(WorkerPlugin plugin, WorkerLimits limits) : client(std::move(plugin), limits, "run", "in its worker") {}

  // Who holds the process (RunProcesses) has all of it.
  WorkerClient client;
  uint32_t next_id = 1;
  DeviceWeights weights;  // of a GPU
};

// The processes in which the regions of one plugin run. There is one, and where calls have waited for each other long enough to have paid
// for it another: each has the weights of what runs in it. A GPU has one: its work would take turns there, and a process takes half a GB
// of it. Any thread.
class RunProcesses {
 public:
  static constexpr size_t kMost = 4;  // and no more than there are processors
  static constexpr std::chrono::milliseconds kWorthAnother{250};  // of waiting, by all calls together, since the last one was added

  // For regions on `hardware`; null: of the processor.
  RunProcesses(WorkerPlugin plugin, WorkerLimits limits, std::chrono::milliseconds run_deadline, const HardwareItem* gpu);

  // A process that nobody else holds, until this is destroyed.
  class Held {
   public:
    Held(RunProcesses& all, size_t number) : all_(&all), number_(number) {}
    Held(Held&& other) noexcept : all_(std::exchange(other.all_, nullptr)), number_(other.number_) {}
    Held& operator=(Held&&) = delete;
    ~Held();
    RunProcess& operator*() const { return *all_->processes_[number_]; }
    RunProcess* operator->() const { return all_->processes_[number_].get(); }
    size_t number() const { return number_; }

   private:
    RunProcesses* all_;
    size_t number_;
  };
  // One of those that are `usable`, bits by number, as soon as one is free; with `may_spread` another one instead, if that is worth it.
  Held hold(uint32_t usable, bool may_spread);

  const std::chrono::milliseconds run_deadline;
  // Null on the processor. A GPU's driver is first asked for here: a plugin that nobody asks for a region starts none.
  Result<std::shared_ptr<DeviceDriver>> driver() const {
    if (!gpu_) return std::shared_ptr<DeviceDriver>();
    return DeviceDriver::of(*gpu_);
  }

 private:
  struct Waiter {
    uint32_t usable;
    std::condition_variable freed;
  };
  std::optional<size_t> free_one(uint32_t among) const;

  const WorkerPlugin plugin_;
  const WorkerLimits limits_;
  const std::optional<HardwareItem> gpu_;
  const size_t most_;
  std::mutex mutex_;  // guards what follows
  std::array<std::unique_ptr<RunProcess>, kMost> processes_;  // the first is there, others when they are needed; then for good
  uint32_t held_ = 0;                                         // bits by number
  std::list<Waiter*> waiting_;                                // in the order in which they came
  std::chrono::nanoseconds waited_{0};
};

class RemoteExecutable final : public Executable {
 public:
  // Loaded from the artifact, or compiled in the worker where there is none. `contained` judges what goes wrong and outlives this.
  static Result<std::shared_ptr<RemoteExecutable>> make(ContainedDevice& contained, std::shared_ptr<RunProcesses> workers,
                                                        const PluginRegion& region, std::optional<Artifact> artifact,
                                                        const PolicyOptions& policy, const CompileOptions& options);
  ~RemoteExecutable() override;

  void add_codegen(uint32_t kernels) { info_.num_codegen += kernels; }  // generated for it in the compile child
  const std::optional<Artifact>& artifact() const { return artifact_; }

  const ExecutableInfo& info() const override { return info_; }
  uint64_t workspace_bytes() const override { return 0; }  // the worker has its own
  uint64_t workspace_align() const override { return 64; }
  Status run(const krn_tensor* inputs, uint32_t num_inputs, const krn_tensor* outputs, uint32_t num_outputs, void* workspace,
             uint64_t stream, bool recording) override;
  PluginDevice& device() const override { return contained_; }

 private:
  RemoteExecutable(ContainedDevice& contained, std::shared_ptr<RunProcesses> workers, const PluginRegion& region,
                   std::optional<Artifact> artifact, const PolicyOptions& policy, const CompileOptions& options,
                   std::shared_ptr<DeviceDriver> driver);
  // What one process has of it. Under the hold of that process.
  struct Place {
    SharedArguments arguments;                         // on a GPU their layout
    std::unique_ptr<DeviceArguments> on_device;        // null: on the processor
    std::vector<std::shared_ptr<LentWeight>> weights;  // of a GPU
    uint32_t id = 0;
    uint64_t loaded_in = 0;  // which of the process's lives; 0: none
  };
  Status judged(const std::function<Status(RunProcess& process, Place& place, const char** function)>& work);
  // Both set `function` to what the plugin is asked for last.
  Status load(RunProcess& process, Place& place, const char** function);
  Result<LentRegion> lend(RunProcess& process, Place* place);  // the arguments' room is mapped, or there is none
  Status run_once(RunProcess& process, Place& place, const krn_tensor* inputs, const krn_tensor* outputs);
  Status run_on_device(RunProcess& process, Place& place, const krn_tensor* inputs, const krn_tensor* outputs, uint64_t stream);

  ContainedDevice& contained_;
  const std::shared_ptr<RunProcesses> workers_;
  // What another worker is given after the first one died.
  const std::vector<uint8_t> bytes_;
  const PluginRegion region_;
  const std::optional<Artifact> artifact_;
  const PolicyOptions policy_;
  CompileOptions options_;
  const std::shared_ptr<DeviceDriver> driver_;  // null: on the processor

  ExecutableInfo info_;
  const uint64_t forks_;
  std::array<Place, RunProcesses::kMost> places_;
  std::atomic<uint32_t> usable_{1};   // bits by number: processes that have had it
  std::atomic<bool> spreads_{false};  // whether it may be loaded into others
  std::mutex lost_mutex_;             // guards what follows
  Status lost_;                       // why it runs no more, or, where that was the machine's fault, not while it rests
};

}  // namespace keirin
