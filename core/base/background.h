// SPDX-License-Identifier: Apache-2.0
//
// Work that nobody waits for, beside calls in service. It runs on threads that the scheduler gives a processor only where nothing else
// wants one, so that calls do not notice it; where calls leave no processor idle, on threads with a small share, or it would never end.
// There is no way back for a thread that gave way (that takes privileges): each piece of such work gets a thread made for it.
#pragma once

#include <functional>
#include <optional>
#include <utility>

namespace keirin {

// How a thread gives way: not at all; to everything; to everything but for a share of a seventh of a processor beside one other thread
// that wants it.
enum class GiveWay { kNot, kToAll, kButForAShare };

// For this thread, and for the threads and processes that it starts from now on. Where it is not allowed nothing changes. Once a thread.
void give_way(GiveWay how);
// What this thread does.
GiveWay giving_way();

// Memory that this process frees stays with its allocator until give_back_memory(). Each piece that goes back to the system stops the
// other processors for a moment, and a compile frees thousands: p99 of calls beside one was 1.3 times that of calls alone, and the same
// with this. For the whole process, and for good.
void keep_freed_memory();
void give_back_memory();
// For a thread that ends: what then lies unused at the end of the memory that it allocated from, 64 MB and more, goes with the next
// give_back_memory(), too, which alone reaches the process's own. run_in_background's threads do it by themselves.
void leave_memory();

// Runs `work` on a thread of its own that gives way: to all if a fifth of a processor is idle, else but for a share. To know that it looks
// for up to a second, once in five. Waits for it, and raises what it raises.
void run_in_background(const std::function<void()>& work);
// Runs `work` on the thread that waits for this one's background work, else here: for what outlives that work and serves calls, and
// would inherit how this thread gives way.
void run_in_foreground(const std::function<void()>& work);

// Whether hardly anything has wanted a processor for the last tenth of a second, which it takes to look: nine tenths were idle.
bool processors_are_idle();

// Background work passes here between two runs of a model. While it is held, threads that give way stop here: those that give way to all
// spin, those with a share sleep. For measurements of what calls notice of such work.
void pass_gate();
void hold_background(bool held);
// How many stand at the gate now.
int num_held();

template <class Fn>
auto in_background(Fn&& fn) {
  std::optional<decltype(fn())> result;
  run_in_background([&] { result.emplace(fn()); });
  return std::move(*result);
}

template <class Fn>
auto in_foreground(Fn&& fn) {
  std::optional<decltype(fn())> result;
  run_in_foreground([&] { result.emplace(fn()); });
  return std::move(*result);
}

}  // namespace keirin
