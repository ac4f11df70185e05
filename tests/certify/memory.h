// SPDX-License-Identifier: Apache-2.0
//
// Memory of one f32 tensor that tells what was done to it: known bytes around the elements, and pages that end a read outside of them. On a
// GPU the same bytes lie there too: what the host writes goes there in `put`, and comes back in `fetch`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "abi/plugin.h"
#include "core/ir/graph.h"
#include "tests/certify/gpu.h"

namespace keirin::certify {

enum class Place {
  kRed,          // a page of known bytes on either side
  kShifted,      // the same, one element past an aligned address
  kEndOfPage,    // behind the last element there is no memory
  kBeginOfPage,  // before the first
};

// Elements by row-major number. Not for copies: it owns mapped pages.
class Memory {
 public:
  Memory(Type type, Place place);
  Memory(Memory&& other) noexcept;
  Memory(const Memory&) = delete;
  ~Memory();

  const Type& type() const { return type_; }
  int64_t size() const { return static_cast<int64_t>(offsets_.size()); }
  float get(int64_t i) const;
  void set(int64_t i, float value);
  void fill(uint8_t byte);  // every byte of the elements
  krn_tensor view(uint32_t flags) const;
  // Both do nothing on the host's memory. They wait for the device's work first, unless told not to.
  void put();
  void fetch(bool waits = true);
  // "behind the last element", "before the first element", "between the elements": where a byte that is nobody's has changed; empty if
  // nowhere.
  std::string damage();
  char* data() const;  // where the plugin finds it

 private:
  Type type_;
  std::vector<int64_t> offsets_;  // in elements
  char *pages_ = nullptr, *first_ = nullptr, *start_ = nullptr;  // first_: of what may be touched
  size_t mapped_ = 0, usable_ = 0, span_ = 0;
  std::optional<Gpu::Block> on_device_{};
  char* device_first_ = nullptr;  // where first_ is there
};

// `bytes` copied to where the last one is the last of its page.
class AtPageEnd {
 public:
  AtPageEnd(const void* bytes, size_t size);
  AtPageEnd(const AtPageEnd&) = delete;
  ~AtPageEnd();
  void* data() const { return data_; }

 private:
  void *pages_, *data_;
  size_t mapped_;
};

}  // namespace keirin::certify
