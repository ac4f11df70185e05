// SPDX-License-Identifier: Apache-2.0
//
// Memory of the stream's own pool, taken and given back in its order: nothing waits.
#include "plugins/gpu/aligned_copies.h"

#include <algorithm>

namespace keirin::gpu {

AlignedCopies::AlignedCopies(const Driver& driver, std::span<void* const> addresses, Stream stream)
    : driver_(driver), stream_(stream), all_(addresses.begin(), addresses.end()) {}

AlignedCopies::~AlignedCopies() {
  for (const Copy& c : copies_) driver_.free_on(stream_, c.at);
}

bool AlignedCopies::make(const std::vector<const ConvTensor*>& tensors) {
  for (size_t i = 0; i < all_.size(); ++i) {
    void* const from = all_[i];
    if (reinterpret_cast<uintptr_t>(from) % 16 == 0) continue;
    Copy c{i, nullptr, from, static_cast<size_t>(bytes_of(*tensors[i]))};
    if (driver_.allocate_on(stream_, c.bytes, c.at) != 0) return false;
    copies_.push_back(c);
    all_[i] = c.at;
    if (driver_.copy(stream_, c.at, from, c.bytes) != 0) return false;
  }
  return true;
}

bool AlignedCopies::give_back(size_t result) const {
  return std::all_of(copies_.begin(), copies_.end(), [&](const Copy& c) {
    return c.place != result || driver_.copy(stream_, c.from, c.at, c.bytes) == 0;
  });
}

}  // namespace keirin::gpu
