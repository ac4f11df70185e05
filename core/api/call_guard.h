// SPDX-License-Identifier: Apache-2.0
//
// What a plan assumes about a call, checked before each: dtypes, sizes and strides of the inputs (whether `reshape` is a view depends
// on strides), alignment of their addresses, that nothing the call writes is reached by another name, and what decides how eager
// computes (core/eager: numeric_modes). A call that is not admitted is answered by eager, which needs none of this. A check of ten
// inputs takes less than 200 ns and allocates nothing.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/base/services.h"

namespace keirin {

// The largest power of two, of those that a plan may rely on, which divides the address of the tensor's first element.
uintptr_t alignment_of(const Tensor& tensor);

class CallGuard {
 public:
  struct Writes {
    std::vector<size_t> inputs;         // flat positions, ascending
    std::vector<TensorRef> weights;     // those that a call writes
    std::vector<TensorRef> all_weights;
  };
  // For calls like one with `inputs` on `device`, under `modes`.
  CallGuard(const std::vector<TensorRef>& inputs, Device device, uint64_t modes, const Writes& writes);
  // For sizes alone: of an entry that names eager.
  explicit CallGuard(std::vector<TensorSpec> specs);

  // Any thread.
  bool admits(const std::vector<TensorRef>& inputs) const;
  // Whether two guards are for the same dtypes, sizes and strides: the newer one takes the older one's place.
  bool same_inputs(const CallGuard& other) const;
  // The same for all calls of these dtypes and sizes, whatever their strides; equal keys of others are possible and rare.
  static uint64_t key_of(const std::vector<TensorRef>& inputs);
  uint64_t key() const { return key_; }
  // What a call with these inputs could be told apart by; with strides.
  const std::vector<TensorSpec>& specs() const { return specs_; }

 private:
  // Addresses, as a list of disjoint ranges in ascending order.
  using Ranges = std::vector<std::pair<uintptr_t, uintptr_t>>;
  static Ranges ranges_of(const std::vector<TensorRef>& tensors);
  static bool meets(const Ranges& ranges, std::pair<uintptr_t, uintptr_t> range);
  bool fits(const Tensor& tensor, size_t input) const;
  std::pair<uintptr_t, uintptr_t> range_of(const std::vector<TensorRef>& inputs, size_t input) const;
  struct Place {
    uintptr_t begin = 0, end = 0;
    bool is_written = false;
  };
  bool written_inputs_apart(const std::vector<TensorRef>& inputs) const;
  bool writes_apart(const std::vector<TensorRef>& inputs) const;

  std::vector<TensorSpec> specs_;
  uint64_t key_ = 0;
  std::vector<uintptr_t> alignment_;     // of each input: its address is a multiple
  std::vector<uintptr_t> span_bytes_;    // from the first to the last byte of each input, which sizes and strides fix
  std::vector<size_t> written_inputs_;
  Ranges written_weights_, all_weights_;
  bool watches_modes_ = false;
  Device device_;
  uint64_t modes_ = 0;
};

}  // namespace keirin
