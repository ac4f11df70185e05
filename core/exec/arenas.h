// SPDX-License-Identifier: Apache-2.0
//
// Memory that plans of processors lend each other for what a call makes and nobody sees: two that answer in turns, as forward and backward
// of a training step do, take the larger one's and not the sum. Of large arenas only: a small one is worth less than asking for it.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "core/base/services.h"
#include "core/base/status.h"

namespace keirin {

class Arenas {
 public:
  static constexpr int64_t kLeastBytes = 1 << 20;
  // Of the process. Any thread.
  static Arenas& shared();
  // At least `bytes` of host memory that nobody else has until it is given back. An idle one that is too small makes room.
  Result<TensorRef> take(TensorServices& services, int64_t bytes);
  void give_back(TensorRef arena);
  // Frees what is idle: whoever comes next asks for what he needs.
  void clear();
  int64_t idle_bytes();

 private:
  // In a forked copy of the process another thread may have held it: nobody waits for it.
  std::mutex mutex_;
  std::vector<TensorRef> idle_;
};

}  // namespace keirin
