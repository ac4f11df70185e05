// SPDX-License-Identifier: Apache-2.0
//
// Memory in which a plugin cannot misbehave unseen: red zones on both sides, gaps between strided elements watched, inputs
// compared with what was written.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/services.h"
#include "core/ir/graph.h"

namespace keirin::conformance {

class GuardedTensor {
 public:
  // All bytes of the elements' span are 0xff: NaN in every float, 255 where a bool must be 0 or 1. `shifted`: one element past
  // the aligned address.
  GuardedTensor(const Type& type, bool shifted);

  const Type& type() const { return type_; }
  void set(int64_t element, const void* bytes);  // row-major element
  void get(int64_t element, void* bytes) const;
  int64_t num_elements() const { return static_cast<int64_t>(offsets_.size()); }
  bool same_elements(const GuardedTensor& other) const;  // bit by bit, of equal types
  void seal();  // what is there now must stay: for inputs
  // Empty, or what was written where nothing may be: around the elements, and for a sealed one anywhere.
  std::string damage() const;
  Result<TensorRef> view(TensorServices& services) const;

 private:
  uint8_t* element(int64_t i) const { return block_.get() + start_ + offsets_[static_cast<size_t>(i)] * dtype_bytes(type_.dtype); }
  Type type_;
  std::vector<int64_t> offsets_;
  std::shared_ptr<uint8_t[]> block_;
  size_t start_ = 0, span_ = 0, total_ = 0;
  std::vector<uint8_t> sealed_;
};

// Raw scratch with red zones, 256-byte aligned.
class GuardedBlock {
 public:
  explicit GuardedBlock(size_t bytes);
  void* data() const;
  bool intact() const;

 private:
  size_t bytes_;
  std::shared_ptr<uint8_t> block_;
};

}  // namespace keirin::conformance
