// SPDX-License-Identifier: Apache-2.0
//
// Judges code for one graph, a region or a part of one, by what it computes of given inputs: beside LibTorch's run of the same operators,
// by its error from these in fp64. Internal to core/api.
#pragma once

#include "core/api/deciding.h"

namespace keirin {

// A worker that somebody killed, memory that ran out, an end that was asked for: nothing is shown by it, least of all a wrong answer, which
// would be remembered for good.
bool is_machines_fault(const Status& status);

// One graph's code alone on tensors of its inputs, which the executable takes in the order of `operands`: a value for every output, and
// nothing of the caller's is written. State is put back.
Result<Deciding::Tensors> run_alone(Deciding& d, const Graph& graph, const std::shared_ptr<Executable>& executable,
                                    const std::vector<ValueId>& operands, const Deciding::Tensors& inputs);

Result<Deciding::Tensors> in_fp64(Deciding& d, const Graph& graph, const Deciding::Tensors& inputs);

// To one graph, by output.
struct Answers {
  Deciding::Tensors eager, referee, ours;
};

// Of what the graph writes, what one of them wrote: a state is large, and what a call writes in it small.
Status cut_to_written(Deciding& d, const Graph& graph, const Deciding::Tensors& inputs, Answers* answers);

struct PartVerdict {
  std::string wrong;     // in words; empty if nothing is
  bool decisive = true;  // eager is as near to fp64 in it as its dtypes explain
};

// The answers to one graph, which was given `border`. `all_outputs`: integers and bools, too.
Result<PartVerdict> judge_part(Deciding& d, const Graph& graph, const Deciding::Tensors& border, Answers answers, bool all_outputs);

// "relu (node @ module)".
std::string name_of(const Graph& graph, OpId id);

}  // namespace keirin
