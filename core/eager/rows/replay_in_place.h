// SPDX-License-Identifier: Apache-2.0
//
// Launch replay for who calls with the same memory again and again, as training steps do: weights, an optimiser's state and what the
// forward keeps for the backward lie where they lay, and gradients are let go of before the next ones are made. A recording that copies
// all of it into and out of its own memory takes longer for that than for the step. Here what stays is seen from the calls, and a
// recording is made of one of them that reads and writes in place. Whatever a recording does not fit is answered by the call itself,
// unrecorded: it is never a question of right or wrong, only of when it pays.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "core/eager/rows/launch_replay.h"

namespace keirin {

// What has been seen of one call's memory. An input stays where it lay in the last call, if it has moved at most kFreeMoves times: what
// is made before is recorded before, and is found elsewhere from then on. One that has moved more often is copied until the copies of all
// that moved with it have taken as long as a recording takes to make: then it may be read in place, and a recording made in vain takes
// no longer than the copies before it. If it lay that long where it was before, it is trusted sooner.
// An output comes back unless it was found held at the next call more than once.
// Where all that had stayed moves at once it is somebody else who calls, as after a race: nothing of this is known of that one.
class Places {
 public:
  struct Input {
    const void* at = nullptr;
    int64_t bytes = 0;
  };
  static constexpr int kFreeMoves = 2;
  // Of a call, in their order.
  void see(const std::vector<Input>& inputs);
  void hold(size_t output);  // it was held when the next call came
  // Those to read in place of a recording that takes so long to make. Only of those that `already` does not say.
  std::vector<bool> staying(double recording_us, const std::vector<bool>& already = {}) const;
  bool may_stay() const;  // whether the next call may show of an input that has just moved, for the first time, that it stays
  bool comes_back(size_t output) const { return output >= holds_.size() || holds_[output] < 2; }
  // What a recorded copy takes on the device, roughly: those of a BERT's activations in a profile of an H200.
  static double copy_us(int64_t bytes) { return 2 + static_cast<double>(bytes) / 2.4e6; }

 private:
  struct Place {
    Input input;
    uint64_t calls = 0, before = 0;  // that it has lain here beyond the first, and where it was before
    int moves = 0;
  };
  bool is_of_another(const std::vector<Input>& inputs) const;
  std::vector<Place> inputs_;
  std::vector<int> holds_;
};

class ReplayInPlace {
 public:
  // Records a call with these inputs, see LaunchReplay::record_in_place; `unsupported` where it cannot be.
  using Recorder = std::function<Result<std::unique_ptr<RecordedCall>>(const std::vector<TensorRef>& inputs, const LaunchReplay::InPlace&,
                                                                    const LaunchReplay::Specs& made, bool draws)>;
  // That of launches. `written_inputs`: the positions of those that `call` writes. The services outlive it.
  static Recorder recorder(LaunchReplay::Call call, std::vector<size_t> written_inputs, TensorServices& services, Device device);
  // `record` records `call`. The services outlive it.
  ReplayInPlace(LaunchReplay::Call call, Recorder record, TensorServices& services, Device device)
      : call_(std::move(call)), recorder_(std::move(record)), services_(services), device_(device) {}

  // Any thread. Calls are enqueued on the current stream; on another one than the last call's, the device is waited for first.
  Result<std::vector<TensorRef>> run(const std::vector<TensorRef>& inputs);

 private:
  static constexpr uint64_t kPaidCalls = 16;   // that a recording has to answer, else it was made in vain
  static constexpr uint64_t kMostPlain = 4;    // calls before another one is made: one, and one more for each in vain
  static constexpr int kMostInVain = 10;       // in a row, after which everything is copied: that one fits
  static constexpr uint64_t kSettled = 1'000;  // calls, after which something may be read in place again
  bool fits(const std::vector<TensorRef>& inputs);
  bool record(const std::vector<TensorRef>& inputs);
  Result<std::vector<TensorRef>> run_plain(const std::vector<TensorRef>& inputs);

  LaunchReplay::Call call_;
  Recorder recorder_;
  TensorServices& services_;
  Device device_;
  std::mutex mutex_;
  Places places_;
  std::unique_ptr<RecordedCall> recording_;
  LaunchReplay::InPlace in_place_;               // of the recording
  LaunchReplay::Specs made_;                     // the outputs of the last plain call
  std::set<uint64_t> met_;                       // threads that have run the call: libraries have what they need there
  bool draws_ = false;
  bool refused_ = false;                         // it cannot be recorded
  bool improves_ = false;                        // the recording fits the call, and another one would pay
  double recording_us_ = 0;                      // what the last recording took to make
  int in_vain_ = 0;                              // recordings in a row that answered fewer than kPaidCalls calls
  uint64_t num_replays_ = 0, num_plain_ = 0;     // of the recording; in a row
  std::optional<uint64_t> stream_;               // of the last replay
};

}  // namespace keirin
