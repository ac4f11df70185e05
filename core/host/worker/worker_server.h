// SPDX-License-Identifier: Apache-2.0
//
// The worker's side of a channel: one plugin, opened once, asked until the host goes. It may crash at any time; whoever wrote the
// question notices that by the end of the channel. What is asked, and how it is answered, is for the roles to say.
#pragma once

#include <functional>

#include "core/host/call/device.h"
#include "core/host/worker/channel.h"

namespace keirin {

// The number of threads that the host's plugin will see, so that both plan alike; all work is done by the caller.
class WorkerServices : public TensorServices {
 public:
  Result<TensorRef> allocate(const TensorSpec&) override { return none(); }
  bool unshared(const TensorRef&) override { return false; }
  Result<TensorRef> wrap(const TensorSpec&, void*, std::shared_ptr<void>) override { return none(); }
  Result<TensorRef> view(const TensorRef&, const TensorSpec&, int64_t) override { return none(); }
  Result<TensorRef> clone(const TensorRef&) override { return none(); }
  Status copy(const TensorRef&, const TensorRef&) override { return none(); }
  Result<TensorRef> cast(const TensorRef&, DType) override { return none(); }
  Result<TensorRef> to_device(const TensorRef&, Device) override { return none(); }
  void parallel_for(int64_t n, int64_t, const std::function<void(int64_t, int64_t)>& fn) override { fn(0, n); }
  int num_threads() override { return threads_; }
  void set_num_threads(int threads) override;  // of the plugin's libraries, too, as far as they divide their work by OpenMP
  void keep_to_this_thread() override {}
  Status synchronize(Device) override { return none(); }
  uint64_t current_stream(Device) override { return 0; }
  int64_t peak_bytes(Device) override { return 0; }
  void reset_peak(Device) override {}
  Allocations allocations(Device) override { return {}; }

 private:
  static Status none() { return Status(Code::k_unsupported, "a worker has no tensors of its own"); }
  int threads_ = 1;
};

// `role`: KRN_ROLE_*, told to the plugin. `services` live as long as the process. `answer` may throw nlohmann's exceptions for a
// question that is not of the form, which ends the process. Returns its exit status, if the channel closed before the plugin was open.
using Answer = std::function<Packet(UsedPlugin& plugin, const Packet& question)>;
int serve_plugin(int channel, uint32_t role, TensorServices& services, const Answer& answer);

// The device of the hardware with that uid; null if the plugin drives it not.
UsedDevice* device_of(UsedPlugin& plugin, const std::string& uid);
// The answer that `status` is.
Packet failure(const Status& status);

}  // namespace keirin
