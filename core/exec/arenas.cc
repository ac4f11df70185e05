// SPDX-License-Identifier: Apache-2.0
#include "core/exec/arenas.h"

#include <algorithm>
#include <utility>

namespace keirin {

namespace {

bool smaller(const TensorRef& a, const TensorRef& b) { return a->storage_bytes() < b->storage_bytes(); }

}  // namespace

Arenas& Arenas::shared() {
  static auto* arenas = new Arenas;  // plans of static lifetime outlive a static one
  return *arenas;
}

Result<TensorRef> Arenas::take(TensorServices& services, int64_t bytes) {
  TensorRef idle;
  if (const std::unique_lock lock(mutex_, std::try_to_lock); lock && !idle_.empty()) {
    // The smallest that is large enough; none: the largest, which is let go of.
    auto found = std::find_if(idle_.begin(), idle_.end(), [&](const TensorRef& each) { return each->storage_bytes() >= bytes; });
    if (found == idle_.end()) --found;
    idle = std::move(*found);
    idle_.erase(found);
  }
  if (idle && idle->storage_bytes() >= bytes) return idle;
  idle.reset();
  return services.allocate({DType::k_u8, {bytes}, {}, Device{}});
}

void Arenas::give_back(TensorRef arena) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;  // freed
  idle_.insert(std::upper_bound(idle_.begin(), idle_.end(), arena, smaller), std::move(arena));
}

void Arenas::clear() {
  std::vector<TensorRef> idle;
  if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) idle.swap(idle_);
}

int64_t Arenas::idle_bytes() {
  const std::lock_guard lock(mutex_);
  int64_t bytes = 0;
  for (const TensorRef& each : idle_) bytes += each->storage_bytes();
  return bytes;
}

}  // namespace keirin
