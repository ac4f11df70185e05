// SPDX-License-Identifier: Apache-2.0
//
// Launch replay of a whole call: everything that `call` enqueues on the device, by plugins and by eager operators, random
// numbers included, is recorded once and then launched as one. The copies of the inputs into the recording's own tensors, and of
// the outputs out of it, are part of the recording and redirected where a call brings other addresses; weights and state stay
// where they are. Inputs and outputs that calls are known to keep at one place (core/eager/rows/replay_in_place.h) are not copied.
// What synchronises with the host cannot be recorded and is refused.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/base/services.h"

namespace keirin {

// A call as it was recorded.
class RecordedCall {
 public:
  virtual ~RecordedCall() = default;
  // Not re-entrant: calls are serialised here. Outputs are fresh tensors but for those in place. Of what stays in place the inputs have
  // to lie where they lay, and nobody may hold an output.
  virtual Result<std::vector<TensorRef>> run(const std::vector<TensorRef>& inputs) = 0;
  virtual bool lie_in_place(const std::vector<TensorRef>& inputs) const = 0;
  virtual std::vector<size_t> held_outputs() const = 0;  // those in place that somebody holds
};

class LaunchReplay : public RecordedCall {
 public:
  using Specs = std::vector<std::optional<TensorSpec>>;  // of outputs; none: not a tensor
  using Call = std::function<Result<std::vector<TensorRef>>(const std::vector<TensorRef>&)>;

  // Runs `call` a few times unrecorded, then records it on clones of `inputs`. `written_inputs` are the positions of those that it
  // writes: what the recording leaves in its clones is copied back. `unsupported` with the reason where the device has no recording
  // or the call cannot be recorded.
  static Result<std::unique_ptr<LaunchReplay>> record(const Call& call, const std::vector<TensorRef>& inputs,
                                                      const std::vector<size_t>& written_inputs, TensorServices& services, Device device);

  // What is not copied: inputs that are read and written where they lie, outputs whose memory is the recording's own and comes back to
  // it. By position; a position that is not there is copied.
  struct InPlace {
    std::vector<bool> inputs, outputs;
  };
  // The same for calls that keep memory in place. Nothing runs: this thread has run `call` before, which answered with outputs as `made`
  // says and drew random numbers if `draws`.
  static Result<std::unique_ptr<LaunchReplay>> record_in_place(const Call& call, const std::vector<TensorRef>& inputs,
                                                               const std::vector<size_t>& written_inputs, const InPlace& in_place,
                                                               const Specs& made, bool draws, TensorServices& services,
                                                               Device device);
  ~LaunchReplay() override;

  Result<std::vector<TensorRef>> run(const std::vector<TensorRef>& inputs) override;
  bool lie_in_place(const std::vector<TensorRef>& inputs) const override;
  std::vector<size_t> held_outputs() const override;

  // What the generator of the device has given so far; 0 where nothing can be recorded.
  static uint64_t drawn(Device device);

 private:
  // A tensor of the recording, and the caller's that stands for it: of an input, or of an output that is none.
  struct Border {
    TensorRef own;                  // null for an input in place
    TensorSpec spec;                // the own one's
    const void* outside = nullptr;  // the address that the recorded copy has now; of an input in place, its own
    int copy = -1;                  // of the recording; -1: copied by itself, before or after
    int input = -1;                 // of an output: the input that it is
    bool in_place = false;
    std::weak_ptr<void> held;       // of an output in place: alive as long as anybody has it
  };

  LaunchReplay(TensorServices& services, Device device) : services_(services), device_(device) {}
  // Of the call with `own` inputs, brought from `inputs`; `outside` stand for the caller's outputs, which are as `made` says where the
  // call is not recorded.
  Status capture(const Call& call, const std::vector<TensorRef>& inputs, const std::vector<TensorRef>& own,
                 const std::vector<TensorRef>& outside, const Specs& made, const InPlace& in_place, bool draws);
  Status capture_calls(const Call& call, const std::vector<TensorRef>& inputs, const std::vector<TensorRef>& own,
                       const std::vector<TensorRef>& outside, const Specs& made, const InPlace& in_place);
  Border border_of(const TensorRef& own) const;
  Status bring(Border& border, const TensorRef& from, std::vector<TensorRef>& kept);
  Result<TensorRef> take(Border& border);
  Result<TensorRef> hand_out(Border& border);

  TensorServices& services_;
  Device device_;
  void* recording_ = nullptr;
  std::mutex mutex_;
  std::vector<Border> inputs_, outputs_;
  std::vector<size_t> written_inputs_;
};

}  // namespace keirin
