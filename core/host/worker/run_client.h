// SPDX-License-Identifier: Apache-2.0
//
// Worker mode: regions on CPU tensors run in a keirin-worker, whose death costs the call and not the service. The arguments are
// copied through shared memory, so that a run that failed has touched nothing of the caller's; the weights are copied once. After a
// worker died, what it held is loaded again into the next one, region by region as they are called.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/host/guard/contained_device.h"
#include "core/host/worker/shared_arguments.h"
#include "core/host/worker/worker_client.h"

namespace keirin {

// The process in which the regions of one plugin run. One run at a time.
class RunClient {
 public:
  RunClient(WorkerPlugin plugin, WorkerLimits limits, std::chrono::milliseconds run_deadline)
      : process(std::move(plugin), limits, "run", "in its worker"), run_deadline(run_deadline) {}

  std::mutex mutex;  // held from the look at which process runs to its answer
  WorkerClient process;
  const std::chrono::milliseconds run_deadline;
  uint32_t next_id = 1;
};

class RemoteExecutable final : public Executable {
 public:
  // Loaded from the artifact, or compiled in the worker where there is none. `contained` judges what goes wrong and outlives this.
  static Result<std::shared_ptr<RemoteExecutable>> make(ContainedDevice& contained, std::shared_ptr<RunClient> worker,
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
  RemoteExecutable(ContainedDevice& contained, std::shared_ptr<RunClient> worker, const PluginRegion& region,
                   std::optional<Artifact> artifact, const PolicyOptions& policy, const CompileOptions& options);
  Status judged(const std::function<Status(const char** function)>& work);
  // Both set `function` to what the plugin is asked for last.
  Status load(const char** function);
  Status run_once(const krn_tensor* inputs, const krn_tensor* outputs, const char** function);

  ContainedDevice& contained_;
  const std::shared_ptr<RunClient> worker_;
  // What another worker is given after the first one died.
  const std::vector<uint8_t> bytes_;
  const PluginRegion region_;
  const std::optional<Artifact> artifact_;
  const PolicyOptions policy_;
  CompileOptions options_;

  ExecutableInfo info_;
  const uint64_t forks_;
  // Under the worker's mutex.
  SharedArguments arguments_;
  uint32_t id_ = 0;
  uint64_t loaded_in_ = 0;  // which of the worker's processes; 0: none
  Status lost_;             // why it runs no more, or, where that was the machine's fault, not while it rests
};

}  // namespace keirin
