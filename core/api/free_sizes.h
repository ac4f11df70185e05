// SPDX-License-Identifier: Apache-2.0
//
// The sizes of a program's inputs that the export left free, as numbers: what inputs of given sizes are. Internal to core/api.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/services.h"
#include "core/base/status.h"
#include "core/capture/pt2/schema.h"

namespace keirin {

// Sizes of the user's tensor inputs with the symbols replaced.
struct ExampleShapes {
  std::vector<TensorSpec> specs;
  std::vector<std::string> symbols;  // free ones: in order of appearance, first those that are a size somewhere, then others
};
// symbol_sizes[k] is the value of the k-th of `symbols`: the size itself, or what a size such as 4 * s is a multiple of. Those that are not
// given are as exported.
Result<ExampleShapes> example_shapes(const pt2::Program& program, const std::vector<int64_t>& symbol_sizes);

}  // namespace keirin
