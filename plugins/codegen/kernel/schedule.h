// SPDX-License-Identifier: Apache-2.0
//
// How a loop kernel is spread over a GPU: which of four shapes, how many elements a thread takes at once, how many threads share
// a row. The first part of a Schedule is compiled in (`schedule_key` names it); the rest follows from sizes at launch. It knows
// no dialect; the printer turns it into text.
#pragma once

#include <array>
#include <functional>
#include <cstdint>
#include <string>

#include "plugins/codegen/kernel/loops.h"

namespace keirin::codegen {

struct GpuFacts {
  int wave = 32;                // threads that exchange registers
  int num_units = 132;          // multiprocessors
  int threads_per_unit = 2048;
  int max_row_threads = 1024;   // largest block
  int max_cluster = 1;          // blocks that may join values without a second kernel
  int registers = 0;            // 32-bit ones that the threads of a multiprocessor share; 0: the compiler makes do with what there is
  int shared_bytes = 0;         // of a multiprocessor's shared memory, for rows on their way; 0: they cannot come behind a thread's back
  int parameter_bytes = 0;      // that a launch may pass by value, for kernels that go together; 0: none do
};

enum class GpuShape : uint8_t {
  kFlat,    // no reduction: every thread a piece of some row
  kRow,     // `group` threads share a row
  kColumn,  // threads along inner, `group` of them share the serial axes of a column
  kTile,    // flat, with loads that are contiguous along another axis turned in shared memory
};

struct Schedule {
  GpuShape shape = GpuShape::kFlat;
  int vec = 1;           // elements of inner that a thread takes at once
  int threads = 256;     // of a block
  int group = 1;
  int chunks = 0;  // row shape: pieces that a thread keeps in registers; 0: too long, read again in each pass. Flat: that it takes at once
  bool wide = false;     // 64-bit indices
  bool whole = false;    // inner is a multiple of vec: no piece has a tail
  bool full = false;     // row shape, whole: and every thread has all its pieces of every row
  bool split = false;    // the first pass is cut over `splits` blocks, whose partial results a second kernel joins
  int cluster = 1;       // row shape: blocks that share a row, each `group` threads of it
  bool ahead = false;    // row shape with chunks: a block's next row is on its way into shared memory while it works on one
  int staged = 0;        // row shape: rows of at most so many elements go through shared memory, where their starts are not whole words
  std::array<int, 3> window{};  // column shape: the sizes of the serial axes, where they make a small window; else 0
  int slide = 0;         // with window: elements from one result's first input to the next's, where windows lie along inner; else 0
  int skew = 0;          // with slide: elements from the start of a 16-byte word to the first input of a piece
  int tile_axis = -1;    // kTile: the outer axis that shares the tile with inner
  int tile = 32;
  int narrow = 0;        // kTile: the size of inner where it is too short for a side of a tile, which is then [narrow, tile]; else 0
  int many = 1;          // flat: kernels of this structure that one launch has room for, a power of two; blocks find theirs

  int64_t splits = 1;        // below: by size, not compiled in
  int64_t split_length = 0;  // pieces (row) or serial points (column) of one split
  int64_t blocks = 1;        // grid of the whole or the partial kernel
  int64_t finish_blocks = 0; // grid of the second kernel
  int64_t workspace_bytes = 0;
  int64_t shared_bytes = 0;  // with ahead: of a block, beyond what the text declares
};

Schedule choose_schedule(const Kernel& kernel, const GpuFacts& facts);
// The best one of which there is code, where somebody waits: that serves as well which was made for sizes that promised less, or for more
// work. choose_schedule's where there is none.
Schedule choose_schedule(const Kernel& kernel, const GpuFacts& facts, const std::function<bool(const Schedule&)>& is_there);
// Of a thread of blocks of that size, where one block has a multiprocessor for itself; INT_MAX where facts do not tell.
int registers_of_thread(const GpuFacts& facts, int threads);
// Of the second kernel of a split column: a group of threads for each element, whatever a thread of the first took at once. What the first
// left is short; what counts is that many wait for it side by side.
Schedule finish_schedule(const Schedule& partial);
// The part that decides the text, to be joined with structure_key.
std::string schedule_key(const Schedule& schedule);
// "row [4x128, 768] 32 threads x8": for people.
std::string describe_schedule(const Kernel& kernel, const Schedule& schedule);

// Stages from `first` on that one walk over the data serves: reductions that do not read each other's results, or maps that do
// not read what the others store. A `once` stage stands alone.
size_t pass_length(const Kernel& kernel, size_t first);
// Nodes below `node`, itself included, through operands and the indices of loads.
void mark_cone(const Kernel& kernel, int32_t node, std::vector<bool>& in);
bool has_axis(const Kernel& kernel, AxisKind kind);
// The serial axis along which windows lie, the last one; and whether a load moves along it and inner alike, as pooling windows do.
size_t window_axis(const Kernel& kernel);
bool slides(const Kernel& kernel, const Access& access);
// With `ahead`: the accesses whose next row is brought, and the 16-byte words of one thread's piece of each.
std::vector<uint32_t> accesses_ahead(const Kernel& kernel, const Schedule& schedule);
void add_ahead(const Kernel& kernel, Schedule& schedule);  // sets it where there are any, and the memory that they take
int words_of_piece(const Access& access, const Schedule& schedule);
// Whether the access reads row after row of memory without gaps.
bool rows_touch(const Kernel& kernel, const Access& access);

}  // namespace keirin::codegen
