// SPDX-License-Identifier: Apache-2.0
//
// What a .pt2 file says about itself before anything is loaded: names, dtypes and sizes of what a call takes and returns, and how much of
// it the operator table knows. Torch-free, no weights.
#pragma once

#include <map>
#include <string>

#include "core/api/keirin.h"
#include "core/base/status.h"
#include "core/capture/pt2/schema.h"

namespace keirin {

// Inputs are those that a call takes, in its order. A name is the path through the module's own arguments, "x", "batch.mask", "cache.0",
// or what the export called the value where the file has no structure.
Signature signature_of(const pt2::Program& program);

// The position of the input of this name, or of the number that is written there; invalid_input lists what there is.
Result<size_t> input_position(const Signature& signature, const std::string& word);

// By names alone, so that it is known at once: what a plan compiles depends on sizes and plugins too.
struct Forecast {
  std::map<std::string, int> operators;  // "aten::add.Tensor": how many nodes, those of inner graphs included
  std::map<std::string, int> opaque;     // of those: what the table does not know, called as PyTorch calls it
  int nodes = 0, known = 0;
};
Forecast forecast_of(const pt2::Program& program);

}  // namespace keirin
