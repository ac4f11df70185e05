// SPDX-License-Identifier: Apache-2.0
#include "core/api/met_sizes.h"

#include <span>
#include <utility>

#include "core/api/call_guard.h"

namespace keirin {

namespace {

// As a plan's guard: it admits no calls that are aligned to less. The stride of one element is nobody's.
void add(std::vector<int64_t>& key, DType dtype, std::span<const int64_t> sizes, std::span<const int64_t> strides, uintptr_t alignment) {
  key.push_back(static_cast<int64_t>(dtype));
  key.push_back(static_cast<int64_t>(sizes.size()));
  key.push_back(static_cast<int64_t>(alignment));
  for (size_t d = 0; d < sizes.size(); ++d) {
    key.push_back(sizes[d]);
    key.push_back(sizes[d] > 1 ? strides[d] : 0);
  }
}

}  // namespace

MetSizes::Answer MetSizes::meet(const std::vector<TensorRef>& inputs) {
  Key key;
  for (const TensorRef& input : inputs) {
    const auto rank = static_cast<size_t>(input->rank());
    add(key, input->dtype(), {input->sizes(), rank}, {input->strides(), rank}, alignment_of(*input));
  }
  return meet(std::move(key));
}

MetSizes::Answer MetSizes::meet(const MetCall& call) {
  Key key;
  for (size_t i = 0; i < call.specs.size(); ++i)
    add(key, call.specs[i].dtype, call.specs[i].sizes, call.specs[i].strides, call.alignment[i]);
  return meet(std::move(key));
}

MetSizes::Answer MetSizes::meet(Key key) {
  if (met_.contains(key)) return Answer::kKnown;
  if (met_.size() >= most_) return Answer::kTooMany;
  met_.insert(std::move(key));
  return Answer::kNew;
}

}  // namespace keirin
