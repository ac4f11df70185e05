// SPDX-License-Identifier: Apache-2.0
//
// A product of rows computes some more of them than it has, so that the products of many sizes are one: a library's code for a size that
// nobody asked for before takes it longer to make than the rows take to compute. Only where operands and result are buffers of the plan's
// own, which get the room; what stands in the rows beyond is read by nobody.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plugins/codegen/backend.h"
#include "plugins/codegen/plan/storage.h"

namespace keirin::codegen {

// The least number of a class, of which there are 16 between one power of two and the next, that is not below `rows`: at most a
// sixteenth more, half of that on the average. `rows` itself up to 32.
int64_t row_class(int64_t rows);

// The same linear over as many rows as its class has; `buffers`, as planned, says which tensors can be given more rows. None if it has that
// many already, if its weights are not constants, or if one of its tensors is not alone in a buffer of the plan's own.
std::optional<AnchorDesc> of_row_class(const AnchorDesc& anchor, const std::vector<BufferInfo>& buffers);

}  // namespace keirin::codegen
