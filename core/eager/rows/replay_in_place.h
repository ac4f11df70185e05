// SPDX-License-Identifier: Apache-2.0
//
// Launch replay for who calls with the same memory again and again, as training steps do: weights, an optimiser's state and what the
// forward keeps for the backward lie where they lay, and gradients are let go of before the next ones are made. A recording that copies
// all of it into and out of its own memory takes longer for that than for the step. Here what stays is seen from the calls, and a
// recording is made of one of them that reads and writes in place. Whatever a recording does not fit is answered by the call itself,
// unrecorded: it is never a question of right or wrong, only of when it pays.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "core/eager/rows/launch_replay.h"

namespace keirin {

// What has been seen of one call's memory. An input stays if it lies where it lay in the call before; from its third move on for twice as
// many calls with each move, so that recordings made in vain are few. An output comes back unless it was found held at the next call more
// than once.
class Places {
 public:
  // Of a call, in their order.
  void see(const std::vector<const void*>& inputs);
  void hold(size_t output);  // it was held when the next call came
  bool stays(size_t input) const;
  bool comes_back(size_t output) const { return output >= holds_.size() || holds_[output] < 2; }

 private:
  struct Input {
    const void* at = nullptr;
    uint64_t calls = 0;  // that it has lain there beyond the first
    int moves = 0;
  };
  std::vector<Input> inputs_;
  std::vector<int> holds_;
};

class ReplayInPlace {
 public:
  // `written_inputs`: the positions of those that `call` writes. The services outlive it.
  ReplayInPlace(LaunchReplay::Call call, std::vector<size_t> written_inputs, TensorServices& services, Device device)
      : call_(std::move(call)), written_inputs_(std::move(written_inputs)), services_(services), device_(device) {}

  // Any thread. Calls are enqueued on the current stream; on another one than the last call's, the device is waited for first.
  Result<std::vector<TensorRef>> run(const std::vector<TensorRef>& inputs);

 private:
  static constexpr int kMostRecordings = 64;  // after which everything is copied: that recording fits all calls
  bool fits(const std::vector<TensorRef>& inputs);
  bool record(const std::vector<TensorRef>& inputs);
  Result<std::vector<TensorRef>> run_plain(const std::vector<TensorRef>& inputs);

  LaunchReplay::Call call_;
  std::vector<size_t> written_inputs_;
  TensorServices& services_;
  Device device_;
  std::mutex mutex_;
  Places places_;
  std::unique_ptr<LaunchReplay> recording_;
  LaunchReplay::InPlace in_place_;               // of the recording
  LaunchReplay::Specs made_;                     // the outputs of the last plain call
  std::set<std::thread::id> met_;                // threads that have run the call: libraries have what they need there
  bool draws_ = false;
  int num_recordings_ = 0;
  std::optional<uint64_t> stream_;               // of the last replay
};

}  // namespace keirin
