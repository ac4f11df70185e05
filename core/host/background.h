// SPDX-License-Identifier: Apache-2.0
//
// Work that nobody waits for. It runs on threads that the scheduler gives a processor only where nothing else wants one, so that
// calls in service do not notice it. There is no way back for a thread that gave way (that takes privileges): it is one made for it.
#pragma once

#include <optional>
#include <thread>
#include <utility>

namespace keirin {

// For this thread, and for the threads and processes that it starts from now on. Where it is not allowed nothing changes.
void give_way();

// Memory that this process frees stays with its allocator until give_back_memory(). Each piece that goes back to the system stops the
// other processors for a moment, and a compile frees thousands: p99 of calls beside one was 1.3 times that of calls alone, and the same
// with this. For the whole process, and for good.
void keep_freed_memory();
void give_back_memory();

// What `fn` returns, called on a thread of its own that gives way.
template <class Fn>
auto in_background(Fn&& fn) {
  std::optional<decltype(fn())> result;
  keep_freed_memory();
  std::thread([&] {
    give_way();
    result.emplace(fn());
  }).join();
  give_back_memory();
  return std::move(*result);
}

}  // namespace keirin
