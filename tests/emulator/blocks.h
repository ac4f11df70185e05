// SPDX-License-Identifier: Apache-2.0
//
// Blocks of a GPU's threads on one thread of the host: every thread of a block is a fibre, and barriers and exchanges switch between
// them. A wave runs until it waits before the next one begins, in blocks of odd number from the last thread to the first: what a
// missing barrier leaves to chance comes out wrong in one of the two. It proves addressing, joins and barriers, not speed and not
// the order in which memory is seen.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace keirin::test {

// What a text compiled for the host is told of the thread that runs, and how it waits for others. The texts declare it themselves
// (plugins/codegen/text/host.krn, tests/standin/emulated/words.krn).
struct KrnHost {
  int thread, block, blocks, rank, threads;
  void (*sync)();  // a barrier
  void (*wait)();  // lets the others run until one of them has done what is awaited
  // What each lane of the wave gives, of at most 16 bytes, 16 bytes apart; valid until the lane meets again. What no lane gave is 0xa5.
  const char* (*meet)(const void* value, int bytes);
  int refused;  // an index of rows that are not there: a GPU ends the grid, here it goes on with row 0
};

struct Grid {
  int64_t blocks = 1;
  int threads = 1, wave = 32;
  int together = 1;           // blocks that run side by side; their number divides that of all
  bool one_barrier = false;   // for all of these: a cluster, whose text tells its blocks' shared memory apart by rank
  std::span<char> shared;  // a block's own, overwritten before it begins; of blocks side by side each has its own unless they are a cluster
};

inline constexpr std::string_view kOutOfBounds = "an index out of bounds";
// One grid at a time; further threads wait. Returns what went wrong, or nothing.
std::string run_grid(const Grid& grid, KrnHost& host, const std::function<void()>& kernel);

}  // namespace keirin::test
