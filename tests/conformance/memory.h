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

// Guarded memory as a plugin's device sees it: the same bytes, or on a GPU a copy of all of them, red zones too.
struct Lent {
  TensorRef block;  // the copy; null where the device reads host memory
  TensorRef view;   // what the plugin is given; null for scratch
  void* data = nullptr;
};

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
  Result<Lent> lend(TensorServices& services, Device device) const;
  // What the device left there, so that damage() and get() see it.
  Status take_back(TensorServices& services, const Lent& lent) const;

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
  bool intact() const;
  Result<Lent> lend(TensorServices& services, Device device) const;
  Status take_back(TensorServices& services, const Lent& lent) const;

 private:
  size_t bytes_, total_;
  std::shared_ptr<uint8_t> block_;
};

}  // namespace keirin::conformance
