// SPDX-License-Identifier: Apache-2.0
#include "core/api/met_call.h"

#include <algorithm>
#include <utility>

#include "core/api/call_guard.h"
#include "core/ir/graph.h"

namespace keirin {
namespace {

constexpr int64_t kCopiedBytes = 1 << 20;  // of one input: a fraction of a millisecond of the call that waits for it

int64_t bytes_of(const TensorSpec& spec) {
  int64_t bytes = dtype_bytes(spec.dtype);
  for (const int64_t size : spec.sizes) bytes *= size;
  return bytes;
}

bool is_copied(const TensorSpec& spec) {
  return bytes_of(spec) <= kCopiedBytes || !is_float(spec.dtype) || spec.strides != contiguous_strides(spec.sizes);
}

}  // namespace

Result<TensorRef> aligned_copy(TensorServices& services, const TensorRef& tensor, uintptr_t alignment) {
  KRN_TRY_LET(TensorRef copy, services.clone(tensor));
  const auto element = static_cast<uintptr_t>(dtype_bytes(tensor->dtype()));
  if (alignment_of(*copy) <= alignment || alignment % element != 0) return copy;
  const TensorSpec spec = spec_of(*tensor);
  int64_t elements = static_cast<int64_t>(alignment / element) + 1;
  for (size_t d = 0; d < spec.sizes.size(); ++d) elements += std::max<int64_t>(spec.sizes[d] - 1, 0) * spec.strides[d];
  KRN_TRY_LET(const TensorRef all, services.allocate({spec.dtype, {elements}, {}, spec.device}));
  KRN_TRY_LET(TensorRef placed, services.view(all, spec, static_cast<int64_t>(alignment)));
  KRN_TRY(services.copy(placed, tensor));
  return placed;
}

int64_t MetCall::bytes() const {
  int64_t sum = 0;
  for (size_t i = 0; i < specs.size(); ++i) sum += inputs[i] ? bytes_of(specs[i]) : 0;
  return sum;
}

Result<MetCall> keep_call(const std::vector<TensorRef>& inputs, TensorServices& services) {
  MetCall call;
  for (const TensorRef& input : inputs) {
    call.specs.push_back(spec_of(*input));
    call.alignment.push_back(alignment_of(*input));
    call.inputs.emplace_back();
    if (is_copied(call.specs.back())) {
      KRN_TRY_LET(call.inputs.back(), aligned_copy(services, input, call.alignment.back()));
    }
  }
  return call;
}

}  // namespace keirin
