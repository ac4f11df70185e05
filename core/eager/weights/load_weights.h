// SPDX-License-Identifier: Apache-2.0
//
// From the payload of a .pt2 file to the table of weights on the CPU: views of the file's storages, without a copy, or
// values drawn by the rules of extra/keirin_init.json where the file holds none.
#pragma once

#include <optional>

#include "core/capture/pt2/read_pt2.h"
#include "core/eager/weights/initial_values.h"
#include "core/eager/weights/weights.h"

namespace keirin {

// The rules of the file; nullopt if it has none.
Result<std::optional<InitialValues>> read_initial_values(const pt2::Pt2File& file);

// Order: the program's inputs. A pending weight without a rule is `invalid_input` naming it. In a file with rules a
// shared empty record means tied weights, because its writer gives every storage a record of its own.
Result<WeightTable> load_weights(const pt2::Model& model, const std::optional<InitialValues>& rules,
                                 TensorServices& services);

// One tensor per flat user input at the sizes of the export: by the file's rules, or uniform in [0, 1), integers 0
// and 1.
Result<std::vector<TensorRef>> draw_inputs(const pt2::Program& program, const std::optional<InitialValues>& rules,
                                           TensorServices& services);

}  // namespace keirin
