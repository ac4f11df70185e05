// SPDX-License-Identifier: Apache-2.0
//
// Which values of a row an earlier stage keeps in scratch for a later one instead of the later one computing them again:
// softmax's exponentials, a gathered and scaled row. Cheap ones are recomputed: a load from cache costs about as much.
// Also whether the rows of a kernel may be cut into blocks: its own file because the launcher must agree with the emitter.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "plugins/codegen/kernel/loops.h"

namespace keirin::codegen::native {

struct SpillPlan {
  explicit SpillPlan(const Kernel& kernel);

  std::map<int32_t, int32_t> slots;            // node -> slot
  std::vector<std::vector<int32_t>> stored;    // by stage: nodes it stores
  std::vector<std::vector<int32_t>> loaded;    // by stage: nodes it loads
  bool loads(size_t stage, int32_t node) const;
};

// One slot holds a row, and a whole vector past its end: 8 bytes an element whatever its type.
inline int64_t slot_bytes(int64_t row_elements) { return ((row_elements + 64) * 8 + 63) / 64 * 64; }

// Nodes that a stage computes or needs, in order.
std::vector<bool> cone(const Kernel& kernel, const Stage& stage);
void add_to_cone(const Kernel& kernel, int32_t node, std::vector<bool>& in);

// Rows without reductions and serial axes, and columns, may be cut along inner; each cut is a unit of work.
bool splits_rows(const Kernel& kernel);

// A map that reads or writes across rows (a transpose): units then walk down the last outer axis inside one narrow block of
// inner, so that the lines that one row touches are still in cache for the next ones.
bool walks_down(const Kernel& kernel);
constexpr int64_t kWalkBlock = 64;

}  // namespace keirin::codegen::native
