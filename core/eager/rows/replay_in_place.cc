// SPDX-License-Identifier: Apache-2.0
#include "core/eager/rows/replay_in_place.h"

#include <algorithm>

#include "core/eager/cuda_graph/library.h"

namespace keirin {

void Places::see(const std::vector<const void*>& inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (i == inputs_.size()) {
      inputs_.push_back({inputs[i]});
    } else if (inputs_[i].at == inputs[i]) {
      ++inputs_[i].calls;
    } else {
      inputs_[i] = {inputs[i], 0, inputs_[i].moves + 1};
    }
  }
}

void Places::hold(size_t output) {
  if (output >= holds_.size()) holds_.resize(output + 1, 0);
  ++holds_[output];
}

bool Places::stays(size_t input) const {
  if (input >= inputs_.size()) return false;
  const int more = std::clamp(inputs_[input].moves - 2, 0, 40);
  return inputs_[input].calls >= uint64_t{1} << more;
}

// Whether the recording may answer, and no other one would be better. Sees to it that the next one fits better.
bool ReplayInPlace::fits(const std::vector<TensorRef>& inputs) {
  std::vector<const void*> at;
  at.reserve(inputs.size());
  for (const TensorRef& input : inputs) at.push_back(input ? input->data() : nullptr);
  places_.see(at);
  if (!recording_) return false;
  const std::vector<size_t> held = recording_->held_outputs();
  for (const size_t output : held) places_.hold(output);
  if (!held.empty() || !recording_->lie_in_place(inputs)) return false;
  for (size_t i = 0; i < inputs.size() && num_recordings_ < kMostRecordings; ++i)
    if (!in_place_.inputs[i] && places_.stays(i)) return false;
  return true;
}

// Of this call, without running it; false: it is answered otherwise.
bool ReplayInPlace::record(const std::vector<TensorRef>& inputs) {
  if (num_recordings_ > kMostRecordings || made_.empty() || !met_.contains(std::this_thread::get_id())) return false;
  // An output that is held for the first time: the recording may fit the next call.
  if (recording_)
    for (const size_t output : recording_->held_outputs())
      if (places_.comes_back(output)) return false;
  const bool last = ++num_recordings_ > kMostRecordings;
  in_place_ = {std::vector<bool>(inputs.size()), std::vector<bool>(made_.size())};
  for (size_t i = 0; i < inputs.size() && !last; ++i) in_place_.inputs[i] = places_.stays(i);
  for (size_t k = 0; k < made_.size() && !last; ++k) in_place_.outputs[k] = places_.comes_back(k);
  recording_.reset();  // gives its memory back first
  auto recording = LaunchReplay::record_in_place(call_, inputs, written_inputs_, in_place_, made_, draws_, services_, device_);
  if (!recording.ok()) return num_recordings_ = kMostRecordings + 1, false;  // nor will it be recorded at another time
  recording_ = std::move(*recording);
  return true;
}

Result<std::vector<TensorRef>> ReplayInPlace::run_plain(const std::vector<TensorRef>& inputs) {
  const uint64_t drawn = LaunchReplay::drawn(device_);
  Result<std::vector<TensorRef>> outputs = call_(inputs);
  if (!outputs.ok()) return outputs;
  const std::lock_guard lock(mutex_);
  draws_ |= LaunchReplay::drawn(device_) != drawn;
  met_.insert(std::this_thread::get_id());
  made_.clear();
  for (const TensorRef& output : *outputs) made_.push_back(output ? std::optional(spec_of(*output)) : std::nullopt);
  return outputs;
}

Result<std::vector<TensorRef>> ReplayInPlace::run(const std::vector<TensorRef>& inputs) {
  if (is_recorded(device_)) return call_(inputs);
  {
    const std::lock_guard lock(mutex_);
    if (fits(inputs) || record(inputs)) {
      const uint64_t stream = services_.current_stream(device_);
      // What somebody let go of on the other stream may still be read there.
      if (stream_ && *stream_ != stream) KRN_TRY(services_.synchronize(device_));
      stream_ = stream;
      return recording_->run(inputs);
    }
  }
  return run_plain(inputs);
}

}  // namespace keirin
