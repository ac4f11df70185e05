// SPDX-License-Identifier: Apache-2.0
//
// A recurrent layer of which one direction is made: its buffers, and what that has to leave in them, in fp64.
#pragma once

#include <string>
#include <vector>

#include "plugins/codegen/backend.h"
#include "tests/unit/cpu/kernel_maker.h"

namespace keirin::test {

// Time-first, one layer, one direction.
codegen::AnchorDesc rnn_anchor(uint32_t op, uint8_t dtype, int64_t time, int64_t batch, int64_t input, int64_t hidden);

// NaNs of all bits, which is what a word looks like that has not come; an infinity, beside numbers whose low bits are zero.
enum class FirstState { kNumbers, kStartsWithNan, kStartsWithInfinity };

struct RnnCase {
  // `rounded`: f32 may be rounded to TF32.
  RnnCase(uint32_t op, uint8_t dtype, int64_t time, int64_t batch, int64_t hidden, int64_t direction,
          FirstState first_state = FirstState::kNumbers, bool rounded = false);

  struct Expected {
    size_t pointer;   // of the kernel
    int64_t element;  // of its buffer
    double value;
  };
  std::string name;
  codegen::AnchorDesc anchor;  // of both directions, with the same weights
  int64_t direction;
  std::vector<Storage> buffers;   // of the kernel's pointers in order, without the workspace
  std::vector<int64_t> skipped;   // bytes of each before what the pointer points to
  std::vector<Expected> expected;
  double room;  // that each may be off by: a few roundings of a state

  // Where the kernel's pointers point, in these buffers.
  std::vector<void*> pointers(std::vector<Storage>& of) const;
  // The first that is wrong, in words; empty: none.
  std::string difference(std::vector<Storage>& got) const;
};

// Both operators, all dtypes; widths that end within a word, rows of several sets.
std::vector<RnnCase> rnn_cases();

}  // namespace keirin::test
