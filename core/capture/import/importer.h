// SPDX-License-Identifier: Apache-2.0
//
// From an exported program to the Graph of one shape class: arguments bound by schema, in-place writes made functional,
// calls rewritten as rows of the table where a recipe is known and kept as opaque calls where none is. It decides
// nothing about speed and never changes what the model means: what it cannot say exactly it refuses, and the caller
// runs the program verbatim.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/services.h"
#include "core/base/status.h"
#include "core/capture/pt2/schema.h"
#include "core/eager/program/observed.h"
#include "core/eager/weights/weights.h"
#include "core/ir/graph.h"

namespace keirin {

class CallTable;

struct Captured {
  Graph graph;  // user inputs by flat position; constants and state by position in the WeightTable
  std::shared_ptr<const CallTable> calls;  // of the opaque ops
  std::vector<std::string> whys;           // by Op::call: why an op is opaque, for reports
};

// Whether a run was observed on inputs of these sizes, or of others: then values are views as they were there, and lie in the same order of
// memory, and their sizes are the file's.
enum class SeenAt : uint8_t { kTheseSizes, kOtherSizes };

// `input_specs` are the flat user inputs at concrete sizes; they are checked as a call's would be. `device` is where
// the model's tensors live. `seen` is what an eager run on inputs of these sizes and strides showed: with it views are what they were
// there; without it they are guessed from schemas and the file's strides, which serves for anything but answering calls. `unsupported` with
// the reason means that the whole model stays eager: sizes that depend on data, inner graphs other than a scope, an operator that returns
// numbers, a write through a view that cannot be followed.
Result<Captured> import_graph(const pt2::Program& program, const WeightTable& weights,
                              const std::vector<TensorSpec>& input_specs, Device device = {}, const ObservedRun* seen = nullptr,
                              SeenAt seen_at = SeenAt::kTheseSizes);

}  // namespace keirin
