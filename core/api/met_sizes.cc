// SPDX-License-Identifier: Apache-2.0
#include "core/api/met_sizes.h"

#include "core/api/call_guard.h"

namespace keirin {

MetSizes::Key MetSizes::key_of(const std::vector<TensorRef>& inputs) {
  Key key;
  for (const TensorRef& input : inputs) {
    key.push_back(static_cast<int64_t>(input->dtype()));
    key.push_back(input->rank());
    key.push_back(
        static_cast<int64_t>(alignment_of(*input)));  // as a plan's guard: it admits no calls that are aligned to less
    for (int64_t d = 0; d < input->rank(); ++d) {
      key.push_back(input->sizes()[d]);
      key.push_back(input->sizes()[d] > 1 ? input->strides()[d] : 0);  // the stride of one element is nobody's
    }
  }
  return key;
}

MetSizes::Answer MetSizes::meet(const std::vector<TensorRef>& inputs) {
  Key key = key_of(inputs);
  if (met_.contains(key)) return Answer::kKnown;
  if (met_.size() >= most_) return Answer::kTooMany;
  met_.insert(std::move(key));
  return Answer::kNew;
}

}  // namespace keirin
