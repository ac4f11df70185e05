// SPDX-License-Identifier: Apache-2.0
//
// What a thread of a scheduled kernel holds in registers: which values a later pass over a row takes from an earlier one, and how many
// words all that is alive at once makes. The printer lays kernels out by the first, the scheduler asks the second.
#pragma once

#include <cstdint>
#include <vector>

#include "plugins/codegen/kernel/schedule.h"

namespace keirin::codegen {

// By node: whether its value changes from element to element of a piece.
std::vector<bool> moves_along_inner(const Kernel& kernel);
// Contiguous along a piece while nothing else varies: whole words. `moves` is moves_along_inner's.
bool takes_words(const Access& access, const std::vector<bool>& moves);
// Pieces (row) or serial points (column) that a thread has under way where it does not keep the row: four words for each operand, fewer
// where there are many; all of a window of one operand. `loads`: contiguous ones.
int strip_length(const Schedule& schedule, int loads);
// Nodes that a stage computes by itself or stores: where the walk down its values begins.
void add_roots(const Kernel& kernel, const Stage& stage, std::vector<int32_t>& out);

// Row shape with pieces in registers.
struct Kept {
  std::vector<int> made_in;                 // by node: the first stage of the pass that first computes it; -1: none
  std::vector<std::vector<int32_t>> taken;  // by first stage of a pass: nodes that it takes from an earlier one
  std::vector<int32_t> all() const;         // each once, sorted
};
Kept find_kept(const Kernel& kernel);

// 32-bit words of a thread at the kernel's fullest moment, by what the printer lays out: values kept for later passes, words under way,
// results that wait for the rest of their word, accumulators, and what indices and functions take as a rule. Compilers stay near or below
// it; where registers are few they find less (bench's rocm_table shows what they made of it).
int registers_needed(const Kernel& kernel, const Schedule& schedule);

}  // namespace keirin::codegen
