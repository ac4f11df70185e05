// SPDX-License-Identifier: Apache-2.0
#include "core/eager/rows/replay_in_place.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <utility>

#include "core/base/overlap.h"
#include "core/eager/cuda_graph/library.h"

namespace keirin {
namespace {

// Of the calling thread, and of no other one before or after it.
uint64_t this_thread() {
  static std::atomic<uint64_t> last{0};
  thread_local const uint64_t number = ++last;
  return number;
}

}  // namespace

bool Places::is_of_another(const std::vector<Input>& inputs) const {
  bool some_moved = false;
  for (size_t i = 0; i < inputs_.size() && i < inputs.size(); ++i) {
    if (!inputs_[i].input.at || inputs_[i].calls == 0) continue;
    if (inputs_[i].input.at == inputs[i].at) return false;
    some_moved = true;
  }
  return some_moved;
}

void Places::see(const std::vector<Input>& inputs) {
  if (is_of_another(inputs)) {
    inputs_.clear();
    holds_.clear();
  }
  inputs_.resize(std::max(inputs_.size(), inputs.size()));
  for (size_t i = 0; i < inputs.size(); ++i) {
    Place& place = inputs_[i];
    if (place.input.at == inputs[i].at) {
      ++place.calls;
    } else {
      place = {inputs[i], 0, place.calls, place.input.at ? place.moves + 1 : 0};
    }
  }
}

void Places::hold(size_t output) {
  if (output >= holds_.size()) holds_.resize(output + 1, 0);
  ++holds_[output];
}

std::vector<bool> Places::staying(double recording_us, const std::vector<bool>& already) const {
  std::vector<bool> out(inputs_.size());
  std::map<std::pair<uint64_t, uint64_t>, double> together;  // what moved at the same calls: its copies
  const auto key = [](const Place& place) { return std::pair(place.calls, place.before); };
  const auto is_asked = [&](size_t i) { return inputs_[i].calls > 0 && (i >= already.size() || !already[i]); };
  for (size_t i = 0; i < inputs_.size(); ++i)
    if (is_asked(i) && inputs_[i].moves > kFreeMoves) together[key(inputs_[i])] += copy_us(inputs_[i].input.bytes);
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const Place& place = inputs_[i];
    out[i] = is_asked(i) &&
             (place.moves <= kFreeMoves || together[key(place)] * static_cast<double>(std::max(place.calls, place.before)) >= recording_us);
  }
  return out;
}

bool Places::may_stay() const {
  return std::ranges::any_of(inputs_, [](const Place& place) { return place.calls == 0 && place.moves <= kFreeMoves; });
}

ReplayInPlace::Recorder ReplayInPlace::recorder(LaunchReplay::Call call, std::vector<size_t> written_inputs, TensorServices& services,
                                                Device device) {
  return [call = std::move(call), written = std::move(written_inputs), &services, device](
             const std::vector<TensorRef>& inputs, const LaunchReplay::InPlace& in_place, const LaunchReplay::Specs& made,
             bool draws) -> Result<std::unique_ptr<RecordedCall>> {
    KRN_TRY_LET(std::unique_ptr<RecordedCall> recording,
                LaunchReplay::record_in_place(call, inputs, written, in_place, made, draws, services, device));
    return recording;
  };
}

// Whether the recording may answer, and no other one would be better. Sees to it that the next one fits better.
bool ReplayInPlace::fits(const std::vector<TensorRef>& inputs) {
  std::vector<Places::Input> at;
  at.reserve(inputs.size());
  for (const TensorRef& input : inputs) {
    const auto [begin, end] = input ? byte_range(*input) : std::pair<uintptr_t, uintptr_t>();
    at.push_back({input ? input->data() : nullptr, static_cast<int64_t>(end - begin)});
  }
  places_.see(at);
  improves_ = false;
  if (!recording_) return false;
  const std::vector<size_t> held = recording_->held_outputs();
  for (const size_t output : held) places_.hold(output);
  if (!held.empty() || !recording_->lie_in_place(inputs)) return false;
  if (places_.may_stay() || (in_vain_ >= kMostInVain && num_replays_ < kSettled)) return true;
  improves_ = std::ranges::count(places_.staying(recording_us_, in_place_.inputs), true) > 0;
  return !improves_;
}

// Of this call, without running it; false: it is answered otherwise.
bool ReplayInPlace::record(const std::vector<TensorRef>& inputs) {
  if (refused_ || made_.empty() || !met_.contains(this_thread()) || places_.may_stay()) return false;
  // An output that is held for the first time: the recording may fit the next call.
  if (recording_)
    for (const size_t output : recording_->held_outputs())
      if (places_.comes_back(output)) return false;
  if (!improves_ && num_plain_ < std::min<uint64_t>(1 + in_vain_, kMostPlain)) return false;
  const auto begin = std::chrono::steady_clock::now();
  in_vain_ = recording_ && num_replays_ < kPaidCalls ? in_vain_ + 1 : 0;
  num_replays_ = 0;
  in_place_ = {};
  if (in_vain_ < kMostInVain) {
    in_place_ = {places_.staying(recording_us_), std::vector<bool>(made_.size())};
    for (size_t k = 0; k < made_.size(); ++k) in_place_.outputs[k] = places_.comes_back(k);
  }
  recording_.reset();  // gives its memory back first
  auto recording = recorder_(inputs, in_place_, made_, draws_);
  refused_ = !recording.ok();  // nor will it be recorded at another time
  if (refused_) return false;
  recording_ = std::move(*recording);
  recording_us_ = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  return true;
}

Result<std::vector<TensorRef>> ReplayInPlace::run_plain(const std::vector<TensorRef>& inputs) {
  const uint64_t drawn = LaunchReplay::drawn(device_);
  Result<std::vector<TensorRef>> outputs = call_(inputs);
  if (!outputs.ok()) return outputs;
  const std::lock_guard lock(mutex_);
  draws_ |= LaunchReplay::drawn(device_) != drawn;
  met_.insert(this_thread());
  ++num_plain_;
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
      ++num_replays_;
      num_plain_ = 0;
      return recording_->run(inputs);
    }
  }
  return run_plain(inputs);
}

}  // namespace keirin
