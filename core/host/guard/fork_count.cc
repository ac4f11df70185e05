// SPDX-License-Identifier: Apache-2.0
#include "core/host/guard/fork_count.h"

#include <pthread.h>

#include <atomic>

namespace keirin {
namespace {

std::atomic<uint64_t> g_forks{0};

}  // namespace

uint64_t fork_count() {
  [[maybe_unused]] static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { g_forks.fetch_add(1, std::memory_order_relaxed); });
  return g_forks.load(std::memory_order_relaxed);
}

Status forked_copy() {
  return Status(Code::k_unsupported, Message{"this process was forked after its plugins were loaded, and plugins cannot be used in a copy",
                                             {},
                                             "eager answers",
                                             "start processes by exec (in Python: the start method spawn), or fork first"});
}

}  // namespace keirin
