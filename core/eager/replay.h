// SPDX-License-Identifier: Apache-2.0
//
// Launch replay of a whole call: everything that `call` enqueues on the device, by plugins and by eager operators, random
// numbers included, is recorded once and then launched as one. The inputs are copied into the recording's own, the outputs out
// of it; weights and state stay where they are. What synchronises with the host cannot be recorded and is refused.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/services.h"

namespace keirin {

class LaunchReplay {
 public:
  using Call = std::function<Result<std::vector<TensorRef>>(const std::vector<TensorRef>&)>;

  // Runs `call` a few times unrecorded, then records it on clones of `inputs`. `unsupported` with the reason where the device
  // has no recording or the call cannot be recorded.
  static Result<std::unique_ptr<LaunchReplay>> record(const Call& call, const std::vector<TensorRef>& inputs,
                                                      TensorServices& services, Device device);
  ~LaunchReplay();

  // A recording is not re-entrant: calls are serialised here. Outputs are fresh tensors.
  Result<std::vector<TensorRef>> run(const std::vector<TensorRef>& inputs);

 private:
  LaunchReplay(TensorServices& services, Device device) : services_(services), device_(device) {}
  TensorServices& services_;
  Device device_;
  void* recording_ = nullptr;
  std::mutex mutex_;
  std::vector<TensorRef> inputs_, outputs_;
  std::vector<int> passed_through_;  // by output: the input that it is, or -1
};

}  // namespace keirin
