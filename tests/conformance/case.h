// SPDX-License-Identifier: Apache-2.0
//
// One conformance case: a Graph around one row of the operator table, what its inputs hold, and which law decides. Cases are
// generated from the table; a row for which none can be generated is itself a failure, so that a new row brings its cases.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/ir/graph.h"

namespace keirin::conformance {

// What an input holds in the two sets of values, `random` and `edges` (NaN, infinities, -0, denormals, extremes).
struct Feed {
  enum Fill { kNumbers, kPositive, kNonneg, kNonzero, kNearOne, kCoarse, kSmall, kIndex, kDistinct, kAscending, kPartition };
  Fill fill = kNumbers;
  int64_t bound = 0;   // kIndex, kDistinct: values lie below it; kAscending: not above it; kPartition: ascending, the last is it
  bool edges = true;   // takes part in `edges`; else as in `random`
  bool extremes = true;  // `edges` holds the largest finite values: not where the order of a sum decides who overflows
  ValueId value = kNone;
};

// Where an operand's elements come from, in row-major order: of an input through a view, or one number.
struct Source {
  int feed = -1;
  double number = 0;
  std::vector<int64_t> from;  // by element: the row-major element of the feed
};

enum class Law {
  kFormula,  // the row's function in fp64, rounded once, within the row's tolerance
  kBits,     // the bits of eager
  kValue,    // the same, but +0 is -0: the order of a maximum decides which of two equals it gives
  kError     // error against fp64 compared with eager's own
};

struct Case {
  std::string name;  // row/dtype/variant/layout
  OpCode row = OpCode::kOpaque;
  DType dtype = DType::kNone;
  Law law = Law::kBits;
  Graph graph;
  OpId op = 0;
  std::vector<Feed> feeds;       // one per input and constant of the graph, in the order in which they were added
  std::vector<Source> operands;  // kFormula only
  bool shifted = false;          // inputs start one element past an aligned address
  bool large = false;            // `random` only
};

// All cases of a row, in a fixed order. Empty if the row has no generator.
std::vector<Case> cases_of(OpCode row);

// The case of a row that is timed, with `rows` rows of 1,024 elements or as much work (speed_cases.cc); nothing where the row has none of
// that dtype. `rows`: a multiple of 256.
std::optional<Case> speed_case(OpCode row, DType dtype, int64_t rows);

std::vector<Case> scalar_cases(OpCode row);
std::vector<Case> reduce_cases(OpCode row);
std::vector<Case> move_cases(OpCode row);
std::vector<Case> factory_cases(OpCode row);
std::vector<Case> composite_cases(OpCode row);

}  // namespace keirin::conformance
