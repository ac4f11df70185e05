// SPDX-License-Identifier: Apache-2.0
#include "core/api/call_guard.h"

#include <algorithm>

#include "abi/planted.h"
#include "core/base/overlap.h"
#include "core/eager/tensor_services.h"

namespace keirin {
namespace {

// What vector loads of any backend may rely on; LibTorch's own allocations are aligned to more.
constexpr uintptr_t kMostAlignment = 64;

class KeyHash {
 public:
  void add(DType dtype, const int64_t* sizes, size_t rank) {
    mix(static_cast<uint64_t>(dtype) << 8 | rank);
    for (size_t d = 0; d < rank; ++d) mix(static_cast<uint64_t>(sizes[d]));
  }
  uint64_t key() const { return key_; }

 private:
  void mix(uint64_t word) {
    key_ = (key_ ^ word) * 0x9e3779b97f4a7c15u;
    key_ ^= key_ >> 29;
  }
  uint64_t key_ = 0x243f6a8885a308d3u;
};

}  // namespace

uintptr_t alignment_of(const Tensor& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.data());
  return address == 0 ? kMostAlignment : std::min(kMostAlignment, address & -address);
}

CallGuard::Ranges CallGuard::ranges_of(const std::vector<TensorRef>& tensors) {
  Ranges ranges;
  for (const TensorRef& tensor : tensors)
    if (const auto range = byte_range(*tensor); range.first != range.second) ranges.push_back(range);
  std::sort(ranges.begin(), ranges.end());
  Ranges merged;
  for (const auto& range : ranges) {
    if (!merged.empty() && range.first <= merged.back().second) merged.back().second = std::max(merged.back().second, range.second);
    else merged.push_back(range);
  }
  return merged;
}

bool CallGuard::meets(const Ranges& ranges, std::pair<uintptr_t, uintptr_t> range) {
  if (ranges.empty()) return false;
  const auto [begin, end] = range;
  const auto after =
      std::upper_bound(ranges.begin(), ranges.end(), begin, [](uintptr_t at, const auto& range) { return at < range.second; });
  return begin != end && after != ranges.end() && after->first < end;
}

CallGuard::CallGuard(const std::vector<TensorRef>& inputs, Device device, uint64_t modes, const Writes& writes)
    : written_inputs_(writes.inputs), written_weights_(ranges_of(writes.weights)), watches_modes_(true), device_(device), modes_(modes) {
  for (const TensorRef& t : inputs) {
    specs_.push_back(spec_of(*t));
    alignment_.push_back(alignment_of(*t));
    const auto range = byte_range(*t);
    span_bytes_.push_back(range.second - range.first);
  }
  if (!written_inputs_.empty()) all_weights_ = ranges_of(writes.all_weights);
  key_ = key_of(inputs);
}

CallGuard::CallGuard(std::vector<TensorSpec> specs) : specs_(std::move(specs)) {
  KeyHash hash;
  for (const TensorSpec& spec : specs_) hash.add(spec.dtype, spec.sizes.data(), spec.sizes.size());
  key_ = hash.key();
}

uint64_t CallGuard::key_of(const std::vector<TensorRef>& inputs) {
  KeyHash hash;
  for (const TensorRef& t : inputs)
    if (t) hash.add(t->dtype(), t->sizes(), static_cast<size_t>(t->rank()));
  return hash.key();
}

bool CallGuard::fits(const Tensor& tensor, size_t input) const {
  const TensorSpec& spec = specs_[input];
  const auto rank = static_cast<int64_t>(spec.sizes.size());
  if (tensor.dtype() != spec.dtype || tensor.rank() != rank) return false;
  const int64_t* sizes = tensor.sizes();
  const int64_t* strides = tensor.strides();
  for (int64_t d = 0; d < rank; ++d) {
    if (sizes[d] != spec.sizes[d] && !KRN_PLANTED(stale_guard)) return false;
    if (!spec.strides.empty() && sizes[d] > 1 && strides[d] != spec.strides[d] && !KRN_PLANTED(strides_unguarded)) return false;
  }
  return alignment_.empty() || (reinterpret_cast<uintptr_t>(tensor.data()) & (alignment_[input] - 1)) == 0;
}

std::pair<uintptr_t, uintptr_t> CallGuard::range_of(const std::vector<TensorRef>& inputs, size_t input) const {
  const auto begin = reinterpret_cast<uintptr_t>(inputs[input]->data());
  return {begin, begin + span_bytes_[input]};
}

// Along ascending addresses: who begins before the end of an earlier one meets it. An update writes most of some hundred inputs, so that
// looking at all pairs took longer than the update.
bool CallGuard::written_inputs_apart(const std::vector<TensorRef>& inputs) const {
  thread_local std::vector<Place> places;
  places.clear();
  size_t next = 0;  // of written_inputs_
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool is_written = next < written_inputs_.size() && written_inputs_[next] == i;
    next += is_written;
    const auto range = range_of(inputs, i);
    if (range.first == range.second) continue;
    if (is_written && meets(all_weights_, range)) return false;
    places.push_back({range.first, range.second, is_written});
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.begin < b.begin; });
  uintptr_t end = 0, written_end = 0;  // of the earlier ones
  for (const Place& place : places) {
    if (place.begin < (place.is_written ? end : written_end)) return false;
    end = std::max(end, place.end);
    if (place.is_written) written_end = std::max(written_end, place.end);
  }
  return true;
}

bool CallGuard::writes_apart(const std::vector<TensorRef>& inputs) const {
  if (!written_inputs_.empty() && !written_inputs_apart(inputs)) return false;
  if (!written_weights_.empty())
    for (size_t i = 0; i < inputs.size(); ++i)
      if (meets(written_weights_, range_of(inputs, i))) return false;
  return true;
}

bool CallGuard::admits(const std::vector<TensorRef>& inputs) const {
  if (inputs.size() != specs_.size()) return false;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!inputs[i] || !fits(*inputs[i], i)) return false;
  if (!KRN_PLANTED(overlap_unguarded) && !writes_apart(inputs)) return false;
  return !watches_modes_ || numeric_modes(device_) == modes_ || KRN_PLANTED(modes_unguarded);
}

bool CallGuard::same_inputs(const CallGuard& other) const {
  if (specs_.size() != other.specs_.size()) return false;
  for (size_t i = 0; i < specs_.size(); ++i) {
    const TensorSpec &a = specs_[i], &b = other.specs_[i];
    if (a.dtype != b.dtype || a.sizes != b.sizes || a.strides.size() != b.strides.size()) return false;
    for (size_t d = 0; d < a.strides.size(); ++d)
      if (a.sizes[d] > 1 && a.strides[d] != b.strides[d]) return false;
  }
  return true;
}

}  // namespace keirin
