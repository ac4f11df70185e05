// SPDX-License-Identifier: Apache-2.0
//
// Launch replay of a whole call: everything that `call` enqueues on the device, by plugins and by eager operators, random
// numbers included, is recorded once and then launched as one. The copies of the inputs into the recording's own tensors, and of
// the outputs out of it, are part of the recording and redirected where a call brings other addresses; weights and state stay
// where they are. What synchronises with the host cannot be recorded and is refused.
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

  // Runs `call` a few times unrecorded, then records it on clones of `inputs`. `written_inputs` are the positions of those that it
  // writes: what the recording leaves in its clones is copied back. `unsupported` with the reason where the device has no recording
  // or the call cannot be recorded.
  static Result<std::unique_ptr<LaunchReplay>> record(const Call& call, const std::vector<TensorRef>& inputs,
                                                      const std::vector<size_t>& written_inputs, TensorServices& services, Device device);
  ~LaunchReplay();

  // A recording is not re-entrant: calls are serialised here. Outputs are fresh tensors.
  Result<std::vector<TensorRef>> run(const std::vector<TensorRef>& inputs);

 private:
  // A tensor of the recording, and the caller's that stands for it: of an input, or of an output that is none.
  struct Border {
    TensorRef own;
    TensorSpec spec;                // the own one's
    const void* outside = nullptr;  // the address that the recorded copy has now
    int copy = -1;                  // of the recording; -1: copied by itself, before or after
    int input = -1;                 // of an output: the input that it is
  };

  LaunchReplay(TensorServices& services, Device device) : services_(services), device_(device) {}
  Border border_of(const TensorRef& own) const;
  Status bring(Border& border, const TensorRef& from, std::vector<TensorRef>& kept);
  Result<TensorRef> take(Border& border);

  TensorServices& services_;
  Device device_;
  void* recording_ = nullptr;
  std::mutex mutex_;
  std::vector<Border> inputs_, outputs_;
  std::vector<size_t> written_inputs_;
};

}  // namespace keirin
